"""The first thing that a command does: take the current folder off `sys.path`, before it imports anything from there.

`python -m` puts the folder in front of everything, and a relative or empty entry of PYTHONPATH has the same effect. The
folder may be a stranger's. This file uses only modules that Python itself has imported at its start, because any other
might come from that folder.
"""

import os
import sys

import reflectrl


def leave_current_folder() -> None:
    """Take the current folder off `sys.path`, and relative entries out of PYTHONPATH, which other processes inherit.

    The folder stays if PYTHONPATH names it in full, or if this package lies in it.
    """
    try:
        here = os.path.realpath(os.getcwd())  # noqa: PTH109
    except OSError:  # the folder was deleted
        return
    written = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    in_full = [entry for entry in written if os.path.isabs(entry)]  # noqa: PTH117
    if len(in_full) < len(written) and "PYTHONPATH" in os.environ:
        os.environ["PYTHONPATH"] = os.pathsep.join(in_full)
    own = os.path.dirname(os.path.dirname(reflectrl.__file__))  # noqa: PTH120
    if here not in [os.path.realpath(entry) for entry in (own, *in_full)]:
        sys.path[:] = [entry for entry in sys.path if os.path.realpath(entry or here) != here]
