"""A stranger's folder in which every module that anybody may look for has a decoy, and a log of decoys that were found.

As `sitecustomize`, this file installs itself in every Python process of a walk. When no finder has a name, the decoy of
that name is written, and the finders are asked again: none may find it. So each optional package of each dependency is
tried, without a list of them.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

DECOY = "import os\nwith open({log!r}, 'a') as file:\n    file.write('{name} was imported\\n')\n"
ASKED = "asked.txt"
"""Names that were looked for and that nothing has, a line each; beside the log of decoys that were found."""


def write_decoy(folder: str, log: str, name: str) -> None:
    """Write a module that notes in the log that it was imported."""
    path = Path(folder) / f"{name}.py"
    if not path.exists():
        path.write_text(DECOY.format(log=log, name=name), encoding="utf-8")


class Decoys:
    """The last finder. It finds nothing itself.

    Args:
        folder: the stranger's folder.
        log: file for the names of decoys that other finders would have found.
    """

    def __init__(self, folder: str, log: str) -> None:
        self.folder, self.log = folder, log
        self.asked: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Write the decoy of a name that nobody has found, and look whether anybody finds it now."""
        if path is not None or name in self.asked or not name.isidentifier():
            return None
        self.asked.add(name)
        write_decoy(self.folder, self.log, name)
        for place in filter(self._is_stranger, [*sys.path_importer_cache]):
            del sys.path_importer_cache[place]
        spec = PathFinder.find_spec(name, None, target)
        with Path(self.log).with_name(ASKED).open("a", encoding="utf-8") as file:
            file.write(f"{name}\n")
        if spec is not None and self._is_stranger(spec.origin or ""):
            with Path(self.log).open("a", encoding="utf-8") as file:
                file.write(f"{name} was found\n")
        return None

    def _is_stranger(self, place: str) -> bool:
        return os.path.realpath(place or ".").startswith(os.path.realpath(self.folder))


if __name__ == "sitecustomize":
    sys.meta_path.append(Decoys(os.environ["DECOYS"], os.environ["DECOYS_LOG"]))  # type: ignore[arg-type]
