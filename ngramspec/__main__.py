"""``python -m ngramspec``: the command ``ngramspec``."""

import sys

from ngramspec.cli import main

if __name__ == "__main__":
    sys.exit(main())
