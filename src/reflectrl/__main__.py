"""`python -m reflectrl` is the command `reflectrl`."""

import sys

from reflectrl.core.start import leave_current_folder

if __name__ == "__main__":
    leave_current_folder()  # first, since all further imports would look there

    from reflectrl.cli import main

    sys.exit(main())
