"""Running the command line inside the test's process."""

from __future__ import annotations

from ngramspec.cli import main


def exit_code(argv):
    """What the command ends with."""
    try:
        return main(argv)
    except SystemExit as error:
        return error.code
