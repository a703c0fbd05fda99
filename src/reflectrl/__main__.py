"""`python -m reflectrl` is the command `reflectrl`."""

import sys

from reflectrl.cli import main

if __name__ == "__main__":
    sys.exit(main())
