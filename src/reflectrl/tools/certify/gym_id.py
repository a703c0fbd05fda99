"""An environment of gymnasium by its id: the class that `init --gym` writes, in a temporary folder."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reflectrl.core.plugins import announced

MODULE = "certified_gym"


def is_gym_id(name: str) -> bool:
    """Return whether a name is written like an id of gymnasium, and no installed environment has it."""
    return name not in announced("envs") and re.fullmatch(r"([\w.]+:)?[\w/-]+-v\d+", name) is not None


@contextmanager
def environment_of(id: str) -> Iterator[str]:
    """Yield the import path of a class for an id of gymnasium. Other processes started within the block find it too.

    Raises:
        UserError: the environment cannot be made, or its observations cannot be described in text.
    """
    from reflectrl.tools.workbench.gym_project import look_at
    from reflectrl.tools.workbench.init import raw

    text = look_at(id).environment(raw("gym_environment.py.txt"), "Certified", id.lower())
    with tempfile.TemporaryDirectory(prefix="reflectrl-gym-") as folder:
        (Path(folder) / f"{MODULE}.py").write_text(text, encoding="utf-8")
        previous_path = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (folder, previous_path)))
        sys.path.append(folder)
        try:
            yield f"{MODULE}:Certified"
        finally:
            sys.path.remove(folder)
            sys.modules.pop(MODULE, None)
            if previous_path is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = previous_path
