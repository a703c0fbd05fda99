"""The hostile environment of the terminal's tests, and the stranger's folder of the tests of trust."""

from tests.test_terminal import at_terminal, world
from tests.test_trust import write

__all__ = ["at_terminal", "world", "write"]
