"""How setup.py compiles, and what ``make sanitize`` does to the structures, in this build."""

from __future__ import annotations

import random
import runpy
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytest.importorskip("Cython")
import Cython.Build
import setuptools
from sanitize.failing import FailingCalls

ROOT = Path(__file__).parents[2]
COMPILER = shlex.split(sysconfig.get_config_var("CC") or "")
SWITCHES = ("NGRAMSPEC_CHECKED", "NGRAMSPEC_SYMBOLS", "NGRAMSPEC_SANITIZE")


@pytest.fixture
def extensions(monkeypatch):
    """Runs setup.py with switches on, on a platform, and returns its extensions."""

    def run(*on: str, platform: str = "linux") -> list[setuptools.Extension]:
        found = []
        for switch in SWITCHES:
            monkeypatch.delenv(switch, raising=False)
        for switch in on:
            monkeypatch.setenv(switch, "1")
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(Cython.Build, "cythonize", lambda each, **directives: each)
        monkeypatch.setattr(setuptools, "setup", lambda **settings: found.append(settings))
        runpy.run_path("setup.py")
        return found[0]["ext_modules"]

    return run


def debug_level(extension: setuptools.Extension) -> str:
    """The last ``-g`` option, which is the one that counts, after the ``-g`` of Python's own."""
    return ["-g", *(arg for arg in extension.extra_compile_args if arg.startswith("-g"))][-1]


def test_only_linux_has_the_option_of_the_linker(extensions):
    found = extensions(platform="darwin")
    assert {debug_level(each) for each in found} == {"-g0"}
    assert not any(each.extra_link_args for each in found)


@pytest.mark.skipif(
    sys.platform != "linux" or not COMPILER or shutil.which(COMPILER[0]) is None,
    reason="looks for the sections of ELF files",
)
@pytest.mark.parametrize(("on", "kept"), [((), False), (("NGRAMSPEC_SYMBOLS",), True)])
def test_the_compiler_takes_the_options(extensions, tmp_path, on, kept):
    flags = extensions(*on)[0]
    source, out = tmp_path / "one.c", tmp_path / "one.so"
    source.write_text(
        "static int unused_name(int a) { return a; }\nint one(int a)"
        " { return unused_name(a) + 1; }\n"
    )
    command = [*COMPILER, "-g", "-fPIC", "-shared", *flags.extra_compile_args]
    subprocess.run([*command, str(source), "-o", str(out), *flags.extra_link_args], check=True)
    content = out.read_bytes()
    assert (b".debug_info" in content) == kept
    assert (b".symtab" in content) == kept


class Failures:
    """Counts failures as those of an extension's allocations."""

    failed = 0

    def arm(self, rng):
        pass

    def disarm(self):
        failed, self.failed = self.failed, 0
        return failed


def test_what_is_not_done_for_lack_of_memory_is_made_up_for():
    failures, checked = Failures(), []

    class Short:
        """Memory ends after two tokens."""

        def __init__(self):
            self.text = []

        def __len__(self):
            return len(self.text)

        def extend(self, tokens):
            self.text += tokens[:2]
            if len(tokens) > 2:
                failures.failed += 1
                raise MemoryError

        def check_integrity(self):
            checked.append(len(self))

    calls = FailingCalls(failures, random.Random(0))
    short = calls.wrap(Short)()
    short.extend([1, 2, 3, 4])
    short.extend([5])
    assert short.text == [1, 2, 3, 4, 5]
    assert checked == [2]
    assert calls.counts == {"Short()": 1, "Short.extend": 2, "Short.extend, out of memory": 1}
