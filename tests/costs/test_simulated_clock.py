"""Lengths and kinds of drafts on a simulated machine that stalls, drifts and doubles."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cost_models import KIND
from simulated_machine import CLOCKS, MACHINES, TEXTS, Model, share_of_best

from ngramspec.costs.model import model_of
from ngramspec.costs.steps import StepCosts

SEEDS = 2
KINDS = replace(KIND, dtype="bfloat16")
GPU = replace(KINDS, machine="gpu")


def shares(machine, clock, text, length, seeds=SEEDS, kinds=None):
    found, kinds = [], kinds or (GPU if machine == "flat" else KINDS)
    for seed in range(seeds):
        model = Model()
        found.append(
            share_of_best(
                lambda model=model: StepCosts(model_of(model, kinds), 65),
                MACHINES[machine],
                CLOCKS[clock],
                TEXTS[text],
                length=length,
                seed=seed,
            )
        )
    return found


@pytest.mark.long
@pytest.mark.parametrize("clock", [*CLOCKS])
@pytest.mark.parametrize(
    ("machine", "length"), [("attention", 300), *((machine, 4000) for machine in MACHINES)]
)
def test_what_is_chosen_is_worth_what_the_best_is(machine, clock, length):
    found = [each for text in TEXTS for each in shares(machine, clock, text, length)]
    assert sum(found) / len(found) > 0.95
    assert min(found) > 0.8


def test_a_machine_that_is_wrongly_taken_for_slow_is_found_out():
    """Forwards of any width cost the same, where wide ones are assumed to cost twice as much."""
    for clock in CLOCKS:
        found = shares("flat", clock, "copying", 8000, kinds=KINDS)
        assert sum(found) / len(found) > 0.9, clock


def test_branches_that_cost_much_give_way_to_chains():
    model, kinds = Model(), []

    class Noting(StepCosts):
        def record_time(self, width, seconds, tree=False):
            kinds.append("plain" if width == 1 else "tree" if tree else "chain")
            super().record_time(width, seconds, tree)

    for machine, most in (("attention", 1.0), ("costly trees", 0.25)):
        kinds.clear()
        share_of_best(
            lambda: Noting(model_of(model, KINDS), 65),
            MACHINES[machine],
            CLOCKS["quiet"],
            TEXTS["talking"],
            length=8000,
            calls=6,
        )
        late = kinds[len(kinds) // 2 :]
        drafts = late.count("tree") + late.count("chain")
        assert drafts > len(late) // 3
        assert (late.count("tree") > 0.5 * drafts) == (most == 1.0)
