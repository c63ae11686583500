"""What has to be equal on both sides, and when only the form can be."""

from __future__ import annotations

from typing import Any

import torch

from fuzz import state
from fuzz.case import Case
from fuzz.drafters import is_drawn
from fuzz.perform import Side, ids_of
from fuzz.users import STEERING

CLOSE = {"rtol": 1e-4, "atol": 2e-4}
ROUNDING = 4e-5  # of the largest number: what float32 may lose over a few layers
SMALL = 100  # times the tolerance: what is checked in float64
BEYOND = 1e30  # in place of infinities
CLOSE_STATES = {"rtol": 1e-4, "atol": 1e-3}  # of layers, which no norm has scaled
STATES = (
    "attentions",
    "hidden_states",
    "decoder_attentions",
    "decoder_hidden_states",
    "cross_attentions",
    "encoder_attentions",
    "encoder_hidden_states",
)


RETURNED_BYTES = 1.1, 256  # times plain's, and more: what returned states may keep alive
RANKING = ("sequences_scores", "beam_indices")  # of beam searches


class Finding(Exception):
    """Something differs that has to be equal.

    Args:
        kind: what differs.
        detail: how.
        small: whether numbers differ by so little that it may be rounding.
    """

    def __init__(self, kind: str, detail: str, *, small: bool = False) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail, self.small = kind, detail, small


def why_loose(case: Case, model: Any) -> str | None:
    """Why the text may be another, so that only its form is compared; None: it may not."""
    verification = case.settings.get("verification", "exact")
    if case.dtype != "float32":
        return f"{case.dtype} rounds by a forward's width"
    if case.hooks in STEERING:
        return "hooks that tell the lengths of forwards"
    if verification == "typical" or case.settings.get("lenience", 1.0) < 1.0:
        return "a verification that changes the distribution"
    if case.samples and is_drawn(case) and verification == "exact":
        return "sampled drafts: the distribution is the target's, not the seed's text"
    if case.samples and case.rows > 1 and not _together(case):
        return "sampled rows that diverge draw for themselves"
    return None


def _together(case: Case) -> bool:
    """Whether something is shown all rows at once, so that they surely advance together."""
    shown = case.streamer or case.processors or case.criteria or case.cache != "own"
    recorded = any(each.startswith("output_") for each in case.options)
    return bool(shown or (recorded and case.options.get("return_dict_in_generate")))


def compare(case: Case, plain: Side, ours: Side, *, loose: bool) -> None:
    """Raise a Finding if the sides differ."""
    changed = [each for each in ours.changed if each not in plain.changed]
    if changed:
        _differ("arguments", "as plain leaves them", ", ".join(changed))
    if len(plain.outputs) != len(ours.outputs):
        _differ("cache", len(plain.outputs), f"{len(ours.outputs)} turns: no cache to go on with")
    for first, second in zip(plain.outputs, ours.outputs, strict=True):
        _same("type", type(first).__name__, type(second).__name__)
        _compare_ids(case, ids_of(first), ids_of(second), loose=loose)
        if loose and len(plain.outputs) > 1:
            break  # texts differ, and so do second turns
    if not (loose and case.beams > 1):  # how many steps there were, no text says
        _compare_rest(case, plain, ours, loose=loose)
    changed = state.differences(plain.left, ours.left)
    if changed:
        _differ("left on the model", "nothing", ", ".join(changed[:5]))


def _compare_ids(case: Case, first: torch.Tensor, second: torch.Tensor, *, loose: bool) -> None:
    _same("dtype", first.dtype, second.dtype)
    _same("batch", first.shape[0], second.shape[0])
    if not loose:
        if not torch.equal(first, second):
            _differ("ids", *_around(first, second))
        return
    ends = case.options.get("eos_token_id") is not None or case.criteria
    if not ends and first.shape != second.shape:
        _differ("shape", tuple(first.shape), tuple(second.shape))
    if not torch.equal(first[:, :1], second[:, :1]) and case.inputs == "ids":
        _differ("prompt", first[:, :1].tolist(), second[:, :1].tolist())


def _compare_rest(case: Case, plain: Side, ours: Side, *, loose: bool) -> None:
    for first, second in zip(plain.outputs, ours.outputs, strict=True):
        if isinstance(first, torch.Tensor):
            continue
        _same("fields", [*first], [*second])
        for name in ("scores", "logits", *RANKING, *STATES):
            one, two = getattr(first, name, None), getattr(second, name, None)
            if (one is None) != (two is None):
                _differ(name, type(one).__name__, type(two).__name__)
            if one is not None and not loose:
                if name == "hidden_states":
                    one, two = _without_padding(case, one), _without_padding(case, two)
                _compare_states(name, one, two, name)
            elif second is not ours.outputs[0]:
                continue  # after another text
            elif one is not None and not name.startswith("encoder"):
                new = len(two), len(one) + second.sequences.shape[1] - first.sequences.shape[1]
                _same(f"number of {name}", new[1], new[0])
    if loose:
        return
    for outputs in zip(plain.outputs, ours.outputs, strict=True):
        for name in () if isinstance(outputs[0], torch.Tensor) else ("scores", "logits", *STATES):
            _compare_bytes(name, *(state.bytes_of(each.get(name)) for each in outputs))
    _compare_told(case, plain, ours)
    # transformers' own hooks for returned states stay in the model, which then cannot be saved.
    if not any("install_output" in each for each in plain.log.found):
        _same("saved model", sorted(plain.log.found), sorted(ours.log.found))
    if ours.emitted is not None and len(ours.outputs) == 1:
        _compare_emitted(case, ours)
    _compare_logs(plain, ours)
    _same("cache", plain.held, ours.held)
    _same("layers of the cache", plain.layers, ours.layers)
    _compare_bytes("the cache", plain.bytes, ours.bytes)
    if isinstance(plain.on, torch.Tensor) and isinstance(ours.on, torch.Tensor):
        if not torch.equal(plain.on, ours.on):
            _differ("continuation", *_around(plain.on, ours.on))
    elif not (written_in_the_mode(plain.on) and isinstance(ours.on, torch.Tensor)):
        _same("continuation", plain.on, ours.on)
    if not torch.equal(plain.random, ours.random):
        _differ("random numbers", "plain's state", "another")


def written_in_the_mode(error: Any) -> bool:
    """Whether plain decoding fails at changing in place what was made in inference mode; ours need
    not, where it makes that itself."""
    return "Inplace update to inference tensor" in str(error)


def _without_padding(case: Case, states: Any) -> Any:
    """Hidden states with those of the prompts' padding set to 0: what they are depends on masks.

    Forwards over the whole text have them: the prefill, and one in which a model reads it again.
    """
    lengths = [len(each) for each in case.prompts]
    if not states or states[0] is None or len(set(lengths)) == 1:
        return states
    return tuple(tuple(_cleared(each, lengths) for each in layers) for layers in states)


def _cleared(states: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    if states.dim() < 3 or states.shape[-2] < max(lengths):
        return states
    states = states.clone()
    copies = states.shape[-3] // len(lengths)
    for row in range(len(lengths) * copies):
        states[..., row, : max(lengths) - lengths[row // copies], :] = 0
    return states


def _compare_states(kind: str, first: Any, second: Any, where: str) -> None:
    if isinstance(first, tuple | list):
        _same(f"length of {where}", len(first), len(second))
        for at, (one, two) in enumerate(zip(first, second, strict=True)):
            _compare_states(kind, one, two, f"{where}[{at}]")
    elif isinstance(first, dict) and isinstance(second, dict):
        _same(f"names in {where}", [*first], [*second])
        for name in first:
            _compare_states(kind, first[name], second[name], f"{where}[{name!r}]")
    elif isinstance(first, torch.Tensor):
        if first.shape != second.shape or first.dtype != second.dtype:
            what = ((tuple(each.shape), each.dtype) for each in (first, second))
            _differ(kind, *(f"{where} {each}" for each in what))
        close = dict(CLOSE if kind in ("scores", "logits", *RANKING) else CLOSE_STATES)
        largest = float(first.double().abs().nan_to_num(0.0, 0.0).max()) if first.numel() else 0.0
        close["atol"] = max(close["atol"], ROUNDING * largest)
        if not torch.allclose(first, second, **close, equal_nan=True):
            both = (each.double().nan_to_num(0.0, BEYOND, -BEYOND) for each in (first, second))
            gap = float(torch.sub(*both).abs().max())
            small = gap <= SMALL * close["atol"]
            raise Finding(kind, f"{where} is off by {gap:.2g}", small=small)
    elif first is not second:
        _differ(kind, first, second)


def _compare_bytes(name: str, first: int, second: int) -> None:
    """What is returned keeps no more memory alive than plain's."""
    factor, more = RETURNED_BYTES
    if second > first * factor + more:
        _differ(f"bytes of {name}", first, second)


def _compare_told(case: Case, plain: Side, ours: Side) -> None:
    """The same warnings and log lines are told, and those that plain tells once, once."""
    first, second = {*plain.told}, {*ours.told}
    again = [each for each in first if plain.told.count(each) == 1 < ours.told.count(each)]
    if case.steps == "joint":  # the other generation tells its own
        second, again = first & second, []
    if first != second:
        _differ("warnings", sorted(first - second), sorted(second - first))
    _same("warnings that are repeated", [], again)


def _compare_emitted(case: Case, ours: Side) -> None:
    """on_step told every row's tokens, but for the padding after its end.

    Criteria may drop the last ones of a row that is ahead of others.
    """
    assert ours.emitted is not None
    for row, told in ours.emitted.items():
        text = ours.sequences[row].tolist()
        if case.criteria and len(ours.emitted) > 1:
            told = told[: min(-(-len(told) // 2), len(text))]
        where = len(text) - len(told)
        if not any(text[at : at + len(told)] == told for at in range(where + 1)):
            _differ("on_step", text, told)


def _compare_logs(plain: Side, ours: Side) -> None:
    for at, (one, two) in enumerate(zip(plain.log, ours.log, strict=False)):
        if one != two:
            _differ(one[0], f"call {at}: {_short(one)}", _short(two))
    _same("number of calls", len(plain.log), len(ours.log))


def _short(entry: Any) -> str:
    text = str(entry)
    return text if len(text) < 90 else f"{text[:30]}...{text[-50:]}"


def _around(first: torch.Tensor, second: torch.Tensor) -> tuple[str, str]:
    if first.shape != second.shape:
        length = min(first.shape[1], second.shape[1])
        places = (first[:, :length] != second[:, :length]).nonzero()
        where = f", first at {places[0].tolist()}" if len(places) else ""
        return str(tuple(first.shape)), f"{tuple(second.shape)}{where}"
    row, at = (first != second).nonzero()[0].tolist()
    return f"{int(first[row, at])} in row {row} at {at}", str(int(second[row, at]))


def _same(kind: str, first: Any, second: Any) -> None:
    if first != second:
        _differ(kind, first, second)


def _differ(kind: str, first: Any, second: Any) -> None:
    raise Finding(kind, f"{second} in place of {first}"[:300])
