"""Wings are tested with the core's recipes and folders of a stranger."""

from tests.pipeline.test_links import target
from tests.test_trust import write

__all__ = ["target", "write"]
