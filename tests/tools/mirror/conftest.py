"""The tiny recipe of the pipeline's tests, and a finished run of it."""

from tests.runs.conftest import finished, launcher, like, recipe_file, said

__all__ = ["finished", "launcher", "like", "recipe_file", "said"]
