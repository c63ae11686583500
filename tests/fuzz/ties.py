"""Whether a text differs only where the target itself hardly knows."""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import torch

from fuzz import perform
from fuzz.case import Case
from fuzz.compare import Finding, compare
from fuzz.perform import Side, ids_of

NEAR = 1e-4  # between the two best processed logits
NEAR_DRAW = 1e-4  # relative, between the two best of a draw's races


def is_tie(case: Case, model: Any, plain: Side, ours: Side) -> bool:
    """Whether the first difference of every row lies where two tokens are all but equal.

    Plain ``generate`` runs once more, with its scores kept; the tokens of a sampled text are
    drawn by races that are run again to see by how much each was won.
    """
    from dataclasses import replace

    if len(plain.outputs) != len(ours.outputs) or not plain.outputs:
        return False
    turn = next(
        (
            at
            for at, pair in enumerate(zip(plain.outputs, ours.outputs, strict=True))
            if not torch.equal(*map(ids_of, pair))
        ),
        None,
    )
    if turn is None:
        return False
    more = {"return_dict_in_generate": True, "output_scores": True}
    races: list[torch.Tensor] = []
    with mock.patch.object(torch, "multinomial", _racing(races)):
        again = perform.plain(replace(case, options={**case.options, **more}), model)
    first, second = ids_of(plain.outputs[turn]), ids_of(ours.outputs[turn])
    scores = again.outputs[turn].scores
    begin = first.shape[1] - len(scores)
    offset = sum(len(each.scores) for each in again.outputs[:turn])
    length = min(first.shape[1], second.shape[1])
    differs = first[:, :length] != second[:, :length]
    if not differs.any():
        return False
    for row in range(len(first)):
        places = differs[row].nonzero()
        if not len(places):
            continue
        at = int(places[0]) - begin
        if at < 0:
            return False
        if case.samples:
            best = races[offset + at][row].topk(2).values
            near = float(best[0] - best[1]) <= NEAR_DRAW * float(best[0])
        else:
            best = scores[at][row].topk(2).values
            near = float(best[0] - best[1]) <= NEAR
        if not near:
            return False
    return True


def is_rounding(case: Case, model: Any, texts: list[list[int]], vocab: int) -> bool:
    """Whether both sides are the same in float64, so that only rounding told them apart.

    Args:
        texts, vocab: as ``perform.ours`` takes them.
    """
    exact = copy.deepcopy(model).double()
    if getattr(exact.config, "_experts_implementation", None) == "grouped_mm":
        exact.set_experts_implementation("eager")  # the kernel does not take float64
    try:
        plain = perform.plain(case, exact)
        ours = perform.ours(case, exact, texts, vocab)
        compare(case, plain, ours, loose=False)
    except Finding:
        return False
    return plain.error is None and ours.error is None


def _racing(races: list[torch.Tensor]) -> Any:
    """torch.multinomial, which keeps how every token fared: probability / exponential noise."""
    draw = torch.multinomial

    def multinomial(probs: torch.Tensor, num_samples: int = 1, **kwargs: Any) -> torch.Tensor:
        state = torch.get_rng_state()
        races.append(probs / torch.empty_like(probs).exponential_(1))
        torch.set_rng_state(state)
        return draw(probs, num_samples, **kwargs)

    return multinomial
