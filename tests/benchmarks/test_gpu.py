"""``python -m benchmarks gpu`` on a CPU, with a tiny model, and its parts, which end in time."""

from __future__ import annotations

import json

import pytest
from doubles import Clock

from benchmarks import gpu
from benchmarks.__main__ import main
from ngramspec.hf_model import compiled

TINY = ["gpu", "--device", "cpu", "--tiny", "--budget", "1000"]
TITLES = (
    "speed of ngramspec, static, over plain and plain, static: ",
    "compiling ngramspec, static: ",
    "cost of 1, 8, 16, 32, 64 positions",
    "waits a step",
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_every_part_runs_and_three_lines_sum_up(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    assert main([*TINY, "--json", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["failed"] == {}
    assert found["unfinished"] == []
    assert found.keys() >= set(gpu.PARTS)
    printed = capsys.readouterr().out.splitlines()[-len(found["lines"]) :]
    assert printed == found["lines"]
    assert all(any(line.startswith(title) for line in printed) for title in TITLES)
    compiled_ways = {"plain, static", "ngramspec, static", "ngramspec, static, width 16"}
    ways = {row["way"] for row in found["contenders"]["summary"]}
    assert ways == {"plain", "lookup", "lookup, static", "ngramspec", *compiled_ways}
    compiling = found["contenders"]["compiling"]
    counts = {way: each["compilations"] for way, each in compiling.items()}
    assert {way for way, count in counts.items() if count} == compiled_ways
    assert counts["ngramspec, static"] <= compiled.MAX_WIDTHS
    tasks = {row["task"] for row in found["contenders"]["summary"]}
    assert tasks >= {*gpu.TASKS, gpu.COPY}
    assert all(row["same"] == row["prompts"] for row in found["contenders"]["summary"])
    assert {cell["outcome"] for cell in found["same_text"]} == {"identical"}
    assert not [row for row in found["attention"] if "error" in row]


@pytest.mark.slow
def test_without_traces_the_rest_is_measured(tmp_path, capsys):
    out = tmp_path / "gpu.json"
    given = [*TINY, "--traces", "nowhere.jsonl", "--parts", "contenders", "--json", str(out)]
    assert main(given) == 1
    found = json.loads(out.read_text())
    assert list(found["failed"]) == ["traces"]
    assert {row["task"] for row in found["contenders"]["summary"]} == {gpu.COPY, gpu.NOTHING}
    assert "failed: traces: FileNotFoundError" in capsys.readouterr().err


def units(clock, seconds, count, error=None):
    """A part whose units take equally long; it may fail at its end."""
    for done in range(1, count + 1):
        clock.now += seconds
        yield done
    if error is not None:
        raise error


def ran(budget, **parts):
    clock, saved = Clock(), []
    running = gpu.Parts(budget, lambda report: saved.append(json.dumps(report)), clock)
    running.run({name: (share, units(clock, *given)) for name, (share, *given) in parts.items()})
    assert json.loads(saved[-1]) == running.report
    return running.report, clock.now, saved


def test_unfinished_parts_go_on_at_the_end_in_their_order():
    report, end, _ = ran(100, first=(20, 10, 4), second=(20, 10, 99), third=(60, 10, 1))
    assert report["seconds"] == {"first": 40, "second": 50, "third": 10}
    assert (report["first"], report["unfinished"], end) == (4, ["second"], 100)


def test_a_unit_that_would_end_too_late_does_not_begin():
    report, end, _ = ran(100, only=(1, 30, 99))
    assert (report["only"], report["seconds"]["only"], end) == (3, 90, 90)


def test_a_part_that_fails_keeps_what_it_found_and_the_others_run(capsys):
    report, _, saved = ran(100, bad=(50, 1, 2, ValueError("broken")), good=(50, 1, 3))
    assert (report["bad"], report["good"]) == (2, 3)
    assert list(report["failed"]) == ["bad"]
    assert "ValueError: broken" in report["failed"]["bad"]
    assert capsys.readouterr().err == "failed: bad: ValueError: broken\n"
    assert json.loads(saved[0])["bad"] == 1  # results are saved as they come
