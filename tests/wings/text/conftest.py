"""Text tasks are learned by the tiny models that learners are tested with."""

from tests.learn.conftest import model_folder, tiny

__all__ = ["model_folder", "tiny"]
