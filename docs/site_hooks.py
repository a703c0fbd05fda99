"""What mkdocs does beside its own work: marks commands that need something, and carries the examples along."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
MARKED = re.compile(r"<!-- (needs: [\w ,]+|slow) -->\n+```(\w+)\n")


def on_files(files: Files, config: Any) -> Files:
    """The site gets the programs of `reflectrl.examples`, which pages link to."""
    for path in sorted((ROOT / "src" / "reflectrl" / "examples").glob("*.py")):
        files.append(File.generated(config, f"examples/{path.name}", abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A marker before a block of commands, for the tests, becomes the block's title, for the reader."""
    linked = markdown.replace("](../src/reflectrl/examples/", "](examples/")
    return MARKED.sub(lambda found: f'```{found[2]} title="{_title(found[1])}"\n', linked)


def _title(marker: str) -> str:
    return "takes a while" if marker == "slow" else marker.replace(":", "")
