"""The rooms and tiny model of the learner's tests, and the small recipe of the runs'."""

from tests.learn.conftest import make_rooms, model_folder, tiny
from tests.runs.conftest import finished, like, recipe_file

__all__ = ["finished", "like", "make_rooms", "model_folder", "recipe_file", "tiny"]
