"""Running the command line inside the test's process, and code where packages are missing."""

from __future__ import annotations

import subprocess
import sys

from ngramspec import cli

MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        package = name.partition(".")[0]
        if package in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=package)
sys.meta_path.insert(0, Missing())
from importlib import util
find_spec = util.find_spec
util.find_spec = lambda name: None if name in {packages!r} else find_spec(name)
"""


def exit_code(argv, main=cli.main):
    """The exit code of a command line, of ``ngramspec`` or of another ``main``."""
    try:
        return main(argv)
    except SystemExit as error:
        return error.code


def run_without(packages, code, *arguments, check=True):
    """Run code in a process in which the packages cannot be imported."""
    code = MISSING.format(packages=(*packages,)) + code
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr
    return done
