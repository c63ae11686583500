"""Plots: files that are figures, of formulas and of results."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest
from command import exit_code

from benchmarks.__main__ import main
from benchmarks.plot import ACCEPTED, CORRECTED, REJECTED, step_parts
from ngramspec.cli import options

pytest.importorskip("matplotlib")


def step(index, drafted, accepted, emitted, parents=None, prompt=0):
    seconds = {f"{part}_seconds": 0.01 for part in ("draft", "forward", "other")}
    return {
        "prompt": prompt,
        "index": index,
        "drafted": drafted,
        "accepted": accepted,
        "emitted": emitted,
        "parents": parents,
        **seconds,
    }


STEPS = [
    step(0, [], [], ["The"]),
    step(1, [" cat", " sat", " up"], [0, 1], [" cat", " sat", " down"]),
    step(2, [" and", " $2", " but"], [1], [" $2", "\n"], [-1, -1, 0]),
]
RUN = {"steps": STEPS, "plain_token_seconds": 0.02}


ALPHA = {"by_depth": [(0.5, 0.1, 30), (0.6, 0.2, 12)]}
GROUP = {"tokens_per_call": 2.0}
FILES = {  # contents of a file of results -> the names of its figures
    "explain": (RUN, {"figure-1", "figure-5"}),
    "bench": (
        {
            "summary": [
                {"task": task, "length": 30, "way": way, "ratio": 1.5}
                for task in ("chat", "code_edit")
                for way in ("plain", "prompt lookup 5", "ngramspec")
            ]
        },
        {"bench-30"},
    ),
    "replay": (
        {
            "results": [
                {"drafter": "auto", "curve": curve, "groups": {"a": GROUP}, "mean": GROUP}
                for curve in ("cpu", "gpu")
            ]
        },
        {"replay-cpu", "replay-gpu"},
    ),
    "drafters": (
        {
            "readings": [
                {"drafter": "auto", "text": "all equal", "tokens": n, "step_us": 3.0}
                for n in (1000, 10_000)
            ]
        },
        {"drafters-all-equal"},
    ),
    "alpha": (
        {
            "rows": [
                {"drafter": "x", "temperature": t, "group": group, "alpha": alpha}
                for t, group, alpha in (
                    (0.0, "all", ALPHA),
                    (0.0, "a", ALPHA),
                    (1.0, "all", {"by_depth": []}),
                )
            ]
        },
        {"alpha-temperature-0", "alpha-temperature-1"},
    ),
}


def test_formulas_need_no_file(tmp_path, capsys):
    assert main(["plot", "--plots", str(tmp_path / "p")]) == 0
    names = {path.name for path in (tmp_path / "p").iterdir()}
    assert names == {f"figure-{n}.{kind}" for n in (2, 3, 4, 5) for kind in ("png", "svg")}
    assert len(capsys.readouterr().out.splitlines()) == 8


@pytest.mark.parametrize("name", FILES)
def test_results_are_drawn(name, tmp_path):
    raw, figures = FILES[name]
    path = tmp_path / "raw.json"
    path.write_text(json.dumps(raw))
    assert main(["plot", str(path), "--plots", str(tmp_path / "p")]) == 0
    assert {path.stem for path in (tmp_path / "p").iterdir()} == figures
    for each in figures:
        root = ElementTree.parse(tmp_path / "p" / f"{each}.svg").getroot()
        assert root.tag.endswith("svg")
        assert (tmp_path / "p" / f"{each}.png").read_bytes()[:4] == b"\x89PNG"


def test_what_a_step_shows():
    assert step_parts(STEPS[0]) == [("The", CORRECTED)]
    assert step_parts(STEPS[1]) == [
        (" cat", ACCEPTED),
        (" sat", ACCEPTED),
        (" up", REJECTED),
        (" down", CORRECTED),
    ]
    assert step_parts(STEPS[2]) == [(" $2", ACCEPTED), ("\n", CORRECTED)]  # " but" follows " and"


def test_files_that_cannot_be_drawn_are_one_line(tmp_path, capsys, monkeypatch):
    path = tmp_path / "o.json"
    path.write_text('{"other": []}')
    assert exit_code(["plot", str(path)], main) == 2
    assert "has none of steps, summary, results, readings, rows" in capsys.readouterr().err
    assert exit_code(["plot", "nowhere.json"], main) == 2
    assert capsys.readouterr().err.count("\n") == 1
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    assert exit_code(["plot"], main) == 2
    install = options.OPTIONAL["matplotlib"]
    error = f"python -m benchmarks plot: the figures need matplotlib; run: {install}\n"
    assert capsys.readouterr().err == error
