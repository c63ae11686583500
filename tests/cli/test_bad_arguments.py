"""What is wrong with the arguments of a command is one line on stderr, before anything is done."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from command import exit_code
from forced_text import tiny_loaded
from tiny_tokenizers import Letters
from wrapping import save_tiny

from ngramspec.stores import Corpus

pytest.importorskip("pydivsufsort")
pytest.importorskip("pathspec")
ON_A_DEVICE = (
    "bench",
    "calibrate",
    "explain",
    "record --prompts {empty} --out x",
    "serve --port 0",
)
UNKNOWN = "'parrot' is no drafter's name"
CASES = [
    ("demo --gamma 0", "gamma must be in 1..64, got 0"),
    ("demo --gamma some", "gamma must be an integer, 'threshold', 'auto' or 'heuristic', got"),
    ("demo --drafter parrot", UNKNOWN),
    ("demo --drafter copy+ngram(order=99)", "ngram"),
    ("demo --dtype int8", "--dtype: invalid choice: 'int8'"),
    ("demo --prompt-file {nothing}", "--prompt-file: {nothing}: No such file"),
    ("demo --prompt-file {project}", "--prompt-file: {project}: Is a directory"),
    ("demo --prompt-file {empty}", "is empty"),
    ("demo --prompt-file {bytes}", "--prompt-file: 'utf-8' codec can't decode byte"),
    ("demo --max-new-tokens 0", "--max-new-tokens must be >= 1, got 0"),
    ("demo --max-new-tokens x", "--max-new-tokens: invalid int value: 'x'"),
    ("demo --model ./no-such-folder", "MODEL: there is no folder or file ./no-such-folder"),
    ("demo ./no-such-folder", "MODEL: there is no folder or file ./no-such-folder"),
    ("demo --colour", "unrecognized arguments: --colour"),
    ("demo --dtype {red}", "red"),
    ("demo ./one --model ./two", "MODEL and --model differ: './one', './two'"),
    ("{red}", "red"),
    ("replay --traces {red}", "ngramspec replay: "),
    ("replay --traces {traces} --drafter parrot", UNKNOWN),
    ("replay --traces {traces} --shared all --fresh", "--shared cannot be combined with"),
    ("replay --traces {traces} --policy best", "policy must be 'value' or 'priority'"),
    ("replay --traces {traces} --curve missing.json", "missing.json"),
    ("replay --traces {traces} --gamma 0", "gamma must be in 1..64, got 0"),
    ("replay --traces {traces} --gamma fast", "gamma must be an integer"),
    ("replay --traces {traces} --gamma-max 0", "gamma_max must be"),
    ("replay --traces {traces} --tree 0", "tree must be"),
    ("record --prompts {nothing} --out x", "nothing"),
    ("bench --repeats 0", "--repeats must be >= 1, got 0"),
    ("bench --max-new-tokens 1", "--max-new-tokens must be >= 2, got 1"),
    ("bench --tasks poetry", "--tasks: unknown task 'poetry'; choose from nothing, summ"),
    ("bench --prompts {nothing}", "--prompts: "),
    ("bench --speculator {{", "not JSON: {{"),
    ("bench --speculator []", "not a JSON object: []"),
    ('bench --speculator {{"gama":8}}', "--speculator {{"),
    ("bench --lengths 8 0", "--lengths must be >= 1, got 0"),
    ("bench --prompt-tokens 300 700", "--prompt-tokens needs --prompts"),
    (
        "bench --prompts {traces} --prompt-tokens 700 300",
        "--prompt-tokens MAX must be >= 700, got 300",
    ),
    ("bench --json {nothing}/found.json", "--json: cannot write {nothing}/found.json: there is no"),
    ("record --prompts {project} --out x", "--prompts: there is no file {project}"),
    ("explain --repeats 1", "--repeats must be >= 2, got 1"),
    ("explain --tokens 1", "--tokens must be >= 2, got 1"),
    ("explain --prompts {nothing}", "--prompts: there is no file {nothing}"),
    *((f"{command} --device moon", "--device moon: ") for command in ON_A_DEVICE),
    ("explain --drafter parrot", UNKNOWN),
    ("serve --port 0 --host 0.0.0.0", "give --api-key"),
    ("serve --port 0 --api-key secret", "USER=KEY"),
    ("serve --port 0 --corpus {nothing}", "--corpus"),
    ("serve --port 0 {nothing}", "MODEL"),
    ("serve --port 0 --assistant {nothing}", "--assistant: there is no folder '{nothing}'"),
    ("serve --port 0 --active 0", "--active must be >= 1"),
    ("serve --port 99999", "--port must be in 0..65535, got 99999"),
    ("wrap {model}", "the following arguments are required: OUT_DIR"),
    ("wrap {model} {out} --gamma 65", "gamma must be in 1..64, got 65"),
    ("wrap {model} {out} --gamma-max 5000", "gamma_max must be in 1..4096, got 5000"),
    ("wrap {model} {out} --policy luck", "policy must be 'value' or 'priority', got"),
    ("wrap ./nowhere {out}", "MODEL_DIR: there is no folder nowhere"),
    ("wrap {model} {model}", "OUT_DIR: "),
    ("wrap {model} /proc/out", "/proc/out: No such file or directory"),
    ("corpus build {out}", "the following arguments are required: PATH"),
    ("corpus build {out} {nothing}", "there is no regular file or folder"),
    ("corpus build {out} {project} --glob *.rs", "at least one token, got none"),
    ("corpus build {nothing}/x.ngc {project}", "there is no folder"),
    ("corpus build {out} {project}/a.py --jsonl text", "line 1: not JSON"),
    ("corpus build {out} {project} --max-file 0", "--max-file must be in 1..1048576, got 0"),
    ("corpus info {fifo}", "not a regular file but a FIFO"),
    ("corpus verify {fifo}", "not a regular file but a FIFO"),
    ("corpus info {nothing}", "No such file"),
    ("corpus info {project}/a.py", "is no ngramspec corpus"),
    ("corpus update {plain}", "was not built by ngramspec corpus build"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Files and folders that arguments name."""
    folder = tmp_path_factory.mktemp("places")
    names = ("out", "nothing", "project", "empty", "bytes", "fifo", "plain", "traces")
    found = {name: folder / name for name in names}
    found["project"].mkdir()
    (found["project"] / "a.py").write_text("one")
    found["empty"].write_text(" \n\t\n")
    found["bytes"].write_bytes(b"\xff")
    os.mkfifo(found["fifo"])
    Corpus.build([np.arange(9, dtype=np.int32)], found["plain"])
    found["traces"].write_text(
        json.dumps({"group": "g", "id": 0, "prompt": [1, 2], "output": [3, 4]})
    )
    return found | {"model": save_tiny(folder / "model"), "red": "\x1b[31m\nred"}


@pytest.mark.parametrize(("arguments", "message"), CASES, ids=[given for given, _ in CASES])
def test_a_bad_argument_is_one_line(places, arguments, message, capsys, monkeypatch):
    def measure(*given, **named):
        raise NotImplementedError("it is loaded or measured")

    if arguments.startswith("serve"):
        pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
        monkeypatch.delenv("NGRAMSPEC_API_KEYS", raising=False)
    if arguments.startswith("corpus"):
        monkeypatch.setattr("ngramspec.measure.models.locate", lambda model: None)
    monkeypatch.setattr("ngramspec.measure.models.load_tokenizer", lambda source: Letters("eno"))
    if "device" in arguments:
        monkeypatch.setattr("ngramspec.measure.models.load", measure)
    elif "no-such" not in arguments and "serve" not in arguments:
        monkeypatch.setattr("ngramspec.measure.models.load", lambda *given, **named: tiny_loaded())
    monkeypatch.setattr("ngramspec.measure.bench.EndToEnd.run", measure)
    assert exit_code([each.format(**places) for each in arguments.split()]) == 2
    said = capsys.readouterr()
    assert message.format(**places) in said.err
    assert said.err.strip("\n").isprintable()  # one line, perhaps after one of progress
    assert said.out == ""
    assert not places["out"].exists()
