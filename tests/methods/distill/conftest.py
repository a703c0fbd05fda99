"""The tiny recipe of the pipeline's tests."""

from tests.runs.conftest import finished, like, recipe_file

__all__ = ["finished", "like", "recipe_file"]
