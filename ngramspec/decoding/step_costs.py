"""The costs of a call's forwards, by the kind of its forwards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from ngramspec.costs.call import CallCosts
from ngramspec.costs.curve import ForwardKind
from ngramspec.costs.processors import GPU, instruction_set
from ngramspec.costs.tracker import StepCostTracker
from ngramspec.hf_model.target import Target

if TYPE_CHECKING:
    from ngramspec.costs.saved import SavedCosts

ASSUMED_NEW_TOKENS = 4096  # planned for if no criterion limits the length; not tuned


def step_costs(
    saved: SavedCosts | None,
    target: Target,
    longest: int,
    max_length: int | None,
    trees: bool,
    log_once: Callable[[str], None],
) -> CallCosts:
    """The costs of a call's forwards, measured under gamma="auto".

    ``longest`` is the maximum number of tokens of a draft, ``max_length`` that of a row, including
    the prompt, if it is known;
    ``trees``: whether drafts may be trees.
    """
    rows, length = target.prompt.shape
    tokens = ASSUMED_NEW_TOKENS if max_length is None else max_length - length
    kind = ForwardKind(
        machine=instruction_set() if target.prompt.device.type == "cpu" else GPU,
        dtype=str(target.model.dtype).removeprefix("torch."),
        rows=rows,
        attention=target.facts.attention,
        static=target.cache.capacity is not None,
        compiled=bool(target.widths),
        tree=trees,
    )
    usable = _usable_costs(saved, target, kind, log_once)
    limit, sizes = longest + 1, target.widths

    def tracker(rows: int) -> StepCostTracker:
        of_rows = replace(kind, rows=rows)
        return StepCostTracker(target.model, of_rows, limit, tokens, usable, sizes)

    return CallCosts(tracker, rows)


def _usable_costs(
    saved: SavedCosts | None,
    target: Target,
    kind: ForwardKind,
    log_once: Callable[[str], None],
) -> SavedCosts | None:
    """The saved costs if they apply to such forwards; else None, with the reason logged once."""
    if saved is None:
        return None
    differences = saved.differences(target.model, kind.attention)
    if kind.rows > 1 or kind.static:
        differences.append("they were measured on batches of one sequence with a dynamic cache")
    if not differences:
        return saved
    log_once(f"not using the saved costs: {'; '.join(differences)}")
    return None
