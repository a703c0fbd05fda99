"""The tiny recipe and the finished run of the pipeline's tests."""

from tests.runs.conftest import copy, finished, like, recipe_file

__all__ = ["copy", "finished", "like", "recipe_file"]
