"""The rooms and tiny models of the learners' tests, and the tiny recipe of the pipeline's."""

from tests.learn.conftest import make_rooms, model_folder, tiny
from tests.runs.conftest import finished, like, recipe_file, said

__all__ = ["finished", "like", "make_rooms", "model_folder", "recipe_file", "said", "tiny"]
