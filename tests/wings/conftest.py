"""Wings are tested with the core's recipes and folders of a stranger."""

from tests.runs.test_links import target
from tests.test_trust import write
from tests.tools.playing.test_trust import theirs

__all__ = ["target", "theirs", "write"]
