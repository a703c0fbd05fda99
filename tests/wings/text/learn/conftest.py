"""Models with tokenizers of every kind."""

from tests.foreign_models import load

__all__ = ["load"]
