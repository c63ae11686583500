"""The example that summarizes documents with Ray Data, on a local cluster with a tiny model."""

from __future__ import annotations

import json
import os
import runpy
import signal
import sys
from pathlib import Path

import pytest
from any_model import tiny_chat

ray = pytest.importorskip("ray", reason="make test-ray")
EXAMPLE = Path(__file__).parents[2] / "examples" / "ray_summaries.py"
BAD = {3: None, 11: "", 12: "  "}  # documents without a text
COUNT, BATCH = 24, 4


@pytest.fixture(scope="module", autouse=True)
def cluster():
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for each in tiny_chat():
        each.save_pretrained(folder)
    return str(folder)


def documents(count=COUNT):
    return [
        {"id": f"d{at}", "text": BAD.get(at, f"Text {at}. " * (1 + at % 5))} for at in range(count)
    ]


def written(path, rows):
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


@pytest.fixture
def run(model, tmp_path, monkeypatch):
    """Runs the example with two actors; returns its results by id, and the ids that actors got."""
    seen = tmp_path / "seen"

    def call(path, kills=None, *options):
        example = runpy.run_path(str(EXAMPLE))
        (tmp_path / "killed").unlink(missing_ok=True)
        seen.write_text("")

        class Watched(example["Summarizer"]):
            def __call__(self, batch):
                ids = [str(each) for each in batch["id"]]
                with seen.open("a") as file:
                    file.write(" ".join(ids) + "\n")
                if kills in ids and not (tmp_path / "killed").exists():
                    (tmp_path / "killed").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return super().__call__(batch)

        main, out = example["main"], tmp_path / "out"
        monkeypatch.setitem(main.__globals__, "Summarizer", Watched)
        given = (path, out, "--model", model, "--batch", BATCH, "--max-new-tokens", 6, *options)
        monkeypatch.setattr(sys, "argv", ["ray_summaries", *map(str, given)])
        main()
        return example["written"](out), [line.split() for line in seen.read_text().splitlines()]

    return call


def expected(model, rows):
    found = runpy.run_path(str(EXAMPLE))["Summarizer"](model, None, 6)(
        {name: [each[name] for each in rows] for name in ("id", "text")}
    )
    return dict(zip(found["id"], zip(found["summary"], found["error"], strict=True), strict=True))


def results(rows):
    return {name: (row["summary"], row["error"]) for name, row in rows.items()}


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_two_actors_write_what_one_process_does(run, model, tmp_path, kind):
    path = written(tmp_path / "texts.jsonl", documents())
    if kind == "parquet":
        from pyarrow import json as arrow_json
        from pyarrow import parquet

        table, path = arrow_json.read_json(path), tmp_path / "texts.parquet"
        parquet.write_table(table, path)
    rows, batches = run(path)
    assert results(rows) == expected(model, documents())
    assert {name for name, row in rows.items() if row["error"]} == {f"d{at}" for at in BAD}
    assert max(map(len, batches)) <= BATCH


def test_a_killed_actor_loses_nothing_and_repeats_its_batch_only(run, model, tmp_path):
    path = written(tmp_path / "texts.jsonl", documents())
    rows, batches = run(path, "d9")
    assert results(rows) == expected(model, documents())
    given = [each for batch in batches for each in batch]
    repeated = {each for each in given if given.count(each) > 1}
    assert (tmp_path / "killed").exists()
    assert "d9" in repeated
    assert any(repeated <= set(batch) for batch in batches)


def test_a_job_that_starts_again_continues(run, model, tmp_path):
    run(written(tmp_path / "texts.jsonl", documents(8)))
    rows, batches = run(written(tmp_path / "texts.jsonl", documents()))
    assert results(rows) == expected(model, documents())
    assert {each for batch in batches for each in batch} == {f"d{at}" for at in range(8, COUNT)}


def test_actors_that_leave_no_cpu_are_refused(run, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run(written(tmp_path / "texts.jsonl", documents(1)), None, "--actors", 4)
    assert "must leave one CPU" in capsys.readouterr().err
