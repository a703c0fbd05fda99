"""Text tasks are learned by the tiny models that learners are tested with."""

from tests.learn.conftest import model_folder, tiny
from tests.runs.conftest import finished, like, recipe_file, small_model

__all__ = ["finished", "like", "model_folder", "recipe_file", "small_model", "tiny"]
