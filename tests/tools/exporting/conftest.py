"""The tiny recipe and the finished run of the pipeline's tests, and the instruct model of the pretrained ones'."""

from tests.runs.conftest import copy, finished, like, recipe_file, small_model
from tests.tools.pretrained.conftest import chat_model, instruct

__all__ = ["chat_model", "copy", "finished", "instruct", "like", "recipe_file", "small_model"]
