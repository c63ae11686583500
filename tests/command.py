"""Running the command line inside the test's process."""

from __future__ import annotations

from ngramspec import cli


def exit_code(argv, main=cli.main):
    """The exit code of a command line, of ``ngramspec`` or of another ``main``."""
    try:
        return main(argv)
    except SystemExit as error:
        return error.code
