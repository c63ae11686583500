"""Costs that were measured beforehand."""

from __future__ import annotations

import json

import pytest
from conftest import tiny_llama
from cost_models import IDS, fed, step_costs

from ngramspec import Speculator
from ngramspec.cli import main
from ngramspec.costs.saved import SavedCosts, described


def test_saved_costs_are_begun_with_and_corrected_when_wrong(tmp_path, caplog):
    model = tiny_llama()
    seconds = {400: {1: 0.01, 9: 0.02, 17: 0.04}, 4000: {1: 0.02, 17: 0.03}}
    path = tmp_path / "costs.json"
    SavedCosts(described(model, "sdpa", model.device), seconds).write(path)
    saved = SavedCosts.read(path)
    assert saved.seconds == seconds
    assert saved.near(512) == pytest.approx({1: 1, 9: 2, 17: 4, 34: 8})
    assert saved.near(3000)[17] == pytest.approx(1.5)
    costs = step_costs(model, saved=saved)
    costs.at(400)
    assert costs.times()[17] == pytest.approx(4)
    assert costs.times()[5] == pytest.approx(1.5)
    fed(costs, {1: 0.01, 9: 0.02})  # as saved
    assert costs.times()[17] == pytest.approx(4, rel=0.05)
    fed(costs, {1: 0.01, 9: 0.05}, 40)  # they were wrong
    assert costs.times()[9] == pytest.approx(5, rel=0.05)
    plain, batch = IDS.repeat(2, 1), Speculator(costs=path)
    model.generate(plain, max_new_tokens=4, custom_generate=batch)
    assert "single sequences" in caplog.text


def test_costs_of_something_else_are_not_used(tmp_path, caplog):
    path, other = tmp_path / "costs.json", tiny_llama(vocab=50)
    SavedCosts(described(other, "sdpa", other.device), {400: {1: 0.01, 9: 0.5}}).write(path)
    model = tiny_llama()
    speculator = Speculator(costs=path)
    assert Speculator.from_dict(speculator.to_dict()).costs == str(path)
    for _ in range(2):
        model.generate(IDS, max_new_tokens=60, custom_generate=speculator)
    assert caplog.text.count("not using") == 1
    assert "parameters is" in caplog.text


COSTS = '{"format": "ngramspec costs 1", "depends": {}, "seconds": %s}'
BAD = [
    ("{", "is not a file of ngramspec calibrate"),
    ("[]", "is not a file of ngramspec calibrate"),
    ('{"format": "other"}', "format must be"),
    (COSTS % "{}", "holds no times"),
    (COSTS % '{"4": {"2": 1}}', "time for width 1"),
    (COSTS % '{"4": {"1": -1}}', "all times > 0"),
]


@pytest.mark.parametrize(("text", "message"), BAD)
def test_files_that_are_no_costs_are_named(tmp_path, text, message):
    path = tmp_path / "costs.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Speculator(costs=path)


def test_calibrate_measures_prints_and_saves(tmp_path, monkeypatch, capsys):
    from ngramspec.measure import models

    model = tiny_llama(positions=2048)
    monkeypatch.setattr(
        models, "load", lambda *args, **kwargs: models.LoadedModel(model, None, "tiny")
    )
    out = tmp_path / "costs.json"
    options = ["--contexts", "20", "--repeats", "1", "--json", str(out)]
    assert main(["calibrate", *options]) == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[:6] == [
        "",
        "cost of a forward, in forwards of one position",
        "           context",
        "positions       20",
        "──────────────────",
        "        1     1.00",
    ]
    assert str(out) in printed.replace("\n", "")
    assert set(json.loads(out.read_text())["seconds"]) == {"20"}
    Speculator(costs=out)
    assert main(["calibrate", "--contexts", "0"]) == 2
    assert "--contexts must be >= 1, got 0" in capsys.readouterr().err
