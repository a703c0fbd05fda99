"""Wings are tested with the core's recipes and folders of a stranger."""

from tests.pipeline.test_links import target
from tests.playing.test_trust import theirs
from tests.test_trust import write

__all__ = ["target", "theirs", "write"]
