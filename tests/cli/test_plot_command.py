"""The command ``plot``: files that are figures, of formulas and of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from command import exit_code

from ngramspec.cli import build_parser, main, usage

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


@pytest.fixture
def run_file(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps(RUN))
    return path


def test_formulas_need_no_run(tmp_path, capsys):
    assert main(["plot", "--plots", str(tmp_path / "p")]) == 0
    names = {path.name for path in (tmp_path / "p").iterdir()}
    assert names == {f"figure-{n}.{kind}" for n in (2, 3, 4, 5) for kind in ("png", "svg")}
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_a_run_gives_figures_1_and_5(tmp_path, run_file):
    assert main(["plot", "1", "5", "--run", str(run_file), "--plots", str(tmp_path / "p")]) == 0
    for number in (1, 5):
        root = ElementTree.parse(tmp_path / "p" / f"figure-{number}.svg").getroot()
        assert root.tag.endswith("svg")
        assert (tmp_path / "p" / f"figure-{number}.png").read_bytes()[:4] == b"\x89PNG"


def test_what_a_step_shows():
    from ngramspec.measure.figures import ACCEPTED, CORRECTED, REJECTED, step_parts

    assert step_parts(STEPS[0]) == [("The", CORRECTED)]
    assert step_parts(STEPS[1]) == [
        (" cat", ACCEPTED),
        (" sat", ACCEPTED),
        (" up", REJECTED),
        (" down", CORRECTED),
    ]
    assert step_parts(STEPS[2]) == [(" $2", ACCEPTED), ("\n", CORRECTED)]  # " but" follows " and"


def test_alpha_is_drawn_with_its_errors(tmp_path):
    from ngramspec.measure.figures import plot_alpha

    alpha = {"by_depth": [(0.5, 0.1, 30), (0.6, 0.2, 12)]}
    rows = [
        {"drafter": name, "temperature": 0.0, "group": group, "alpha": alpha}
        for name, group in (("copy", "all"), ("copy", "a"))
    ]
    rows.append({"drafter": "x", "temperature": 1.0, "group": "all", "alpha": {"by_depth": []}})
    assert {path.name for path in plot_alpha(rows, tmp_path)} == {
        f"alpha-temperature-{t}.{kind}" for t in (0, 1) for kind in ("png", "svg")
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["6"], "figures must be in 1..5, got 6"),
        (["1"], "Figure 1 needs --run FILE"),
        (["--run", "nowhere.json"], "--run: "),
        (["two"], "invalid int value"),
    ],
)
def test_bad_arguments_are_one_line(tmp_path, capsys, arguments, message):
    assert exit_code(["plot", "--plots", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_the_error_names_a_command_that_exists(tmp_path, capsys):
    assert exit_code(["plot", "1", "--plots", str(tmp_path)]) == 2
    named = re.search(r"'ngramspec (.*)'", capsys.readouterr().err)[1]
    assert build_parser().parse_args(named.split()).json == Path("FILE")


def test_without_matplotlib_no_option_is_blamed(monkeypatch, capsys):
    monkeypatch.setattr(usage, "find_spec", lambda name: None)
    assert exit_code(["plot", "2"]) == 2
    error, install = capsys.readouterr().err, usage.OPTIONAL["matplotlib"]
    assert error == f"ngramspec plot: the figures need matplotlib; run: {install}\n"


def test_a_file_that_is_no_run_is_refused(tmp_path, capsys):
    path = tmp_path / "o.json"
    path.write_text('{"steps": []}')
    assert exit_code(["plot", "5", "--run", str(path), "--plots", str(tmp_path)]) == 2
    assert "has no 'plain_token_seconds'" in capsys.readouterr().err
