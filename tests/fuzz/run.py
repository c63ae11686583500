"""Runs a case both ways and says what came of it."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from fuzz import models, perform, state
from fuzz.case import Case, simpler
from fuzz.compare import Finding, compare, why_loose, written_in_the_mode
from fuzz.drafters import FAULTY
from fuzz.drawn_families import VOCAB
from fuzz.inputs import _ids
from fuzz.perform import Side
from fuzz.ties import is_rounding, is_tie
from ngramspec import UnsupportedError

# Families whose rotary frequencies depend on the calls before: each side gets a new model.
STATEFUL = ("dynamic", "longrope")


@dataclass(frozen=True)
class Result:
    """What came of a case.

    Attributes:
        outcome: "identical", "structure" (sampled text that is not the seed's, or half
            precision: only its form was compared), "tie", "refused", "equal exception",
            "not run" (no such model here) or "finding".
        kind: of a finding, what differs: "ids", "scores", "exception", ...
        detail: the refusal, the exception or the difference, in a line.
        accepted: draft tokens, where the outcome is "identical".
        chains: then why trees were asked for and chains were drafted.
    """

    outcome: str
    kind: str = ""
    detail: str = ""
    accepted: int = 0
    chains: tuple[str, ...] = ()


def run(case: Case) -> Result:
    """Run a case both ways and compare."""
    with state.isolated(case.default_dtype):
        try:
            with torch.no_grad():
                torch.set_default_dtype(torch.float32)
                model = models.model_of(case.family, case.shape, case.attention, case.dtype)
        except Exception as error:
            return Result("not run", detail=_line(error))
        torch.set_default_dtype(getattr(torch, case.default_dtype))
        try:
            return _run(case, model)
        except perform.NotAsked as error:
            return Result("not run", detail=_line(error))
        except Finding as finding:
            models.forget(model)
            return Result("finding", finding.kind, finding.detail)


def _run(case: Case, model: Any) -> Result:
    fresh = any(each in case.family for each in STATEFUL)  # earlier cases must leave nothing
    one, two = (models.unused_copy(model) if fresh else model for _ in range(2))
    plain = perform.plain(case, one)
    ours = perform.ours(case, two, _texts(case, model, plain), _vocab(model))
    if ours.cycles:
        raise Finding("cycle", f"{ours.cycles} caches outlive the call in a reference cycle")
    if isinstance(ours.error, UnsupportedError):
        _check_refusal(case, ours)
        _check_left(case, plain, ours)
        return Result("refused", detail=_line(ours.error))
    if plain.error is not None or ours.error is not None:
        _check_errors(case, plain, ours)
        return Result("equal exception", detail=_line(plain.error or ours.error))
    loose = why_loose(case, model)
    if loose is not None and fresh:  # texts of other lengths leave other frequencies
        plain.left, ours.left = {}, {}
    try:
        compare(case, plain, ours, loose=loose is not None)
    except Finding as finding:
        texts = _texts(case, model, plain)
        small = finding.small or case.beams > 1
        if small and is_rounding(case, model, texts, _vocab(model)):
            return Result("tie", detail=finding.detail)
        if finding.kind in ("ids", "continuation") and is_tie(case, model, plain, ours):
            return Result("tie", detail=finding.detail)
        raise
    if ours.faults and not (case.drafter in FAULTY or case.reference == "beyond"):
        raise Finding("faults", f"{ours.faults} faults of a drafter that is sound")
    if loose is not None:
        return Result("structure", detail=loose)
    return Result("identical", accepted=ours.accepted, chains=tuple(ours.chains))


def _check_refusal(case: Case, ours: Side) -> None:
    """A refusal has to come before anything was shown, drawn or kept, and not where plain
    decoding was asked for."""
    kinds = [each[0] for each in ours.log]
    shown = kinds.count("put") > 1 or "processor" in kinds or "criterion" in kinds
    if shown and not ours.outputs:
        raise Finding("late refusal", _line(ours.error))
    if not ours.outputs and not ours.untouched:
        raise Finding("late refusal", f"random numbers were drawn: {_line(ours.error)}")
    if case.offload and "a forward that tests it failed" in str(ours.error):
        raise Finding("refusal of offloaded weights", _line(ours.error))
    asked = case.settings.get("unsupported") == "plain"
    asked = asked and case.entry not in ("generator", "stepwise")  # which plain does not have
    if asked and "cannot be used here" not in str(ours.error):
        raise Finding("refusal in place of plain", _line(ours.error))


def _embeds_no_pad(case: Case, plain: Exception | None) -> bool:
    """Whether plain decoding fails for feeding ended rows a pad id without an embedding; ours
    need not fail there, nor in the same way."""
    unknown = case.options.get("pad_token_id") in (-1, VOCAB)
    return unknown and isinstance(plain, IndexError | RuntimeError)


def _in_columns(case: Case, plain: Exception | None) -> bool:
    """Whether plain decoding fails at a criterion that answers in a column; ours need not."""
    if "column" not in case.criteria:
        return False
    return "number of dimensions" in str(plain) or (case.beams > 1 and plain is not None)


def _by_the_text(case: Case, error: Exception | None) -> bool:
    """Whether an error comes of what a text says: one of the case's own, at a step that another
    text does not reach; or a pad id without an embedding, after another row's end, where a
    processor runs the model itself."""
    unknown = case.options.get("pad_token_id") in (-1, VOCAB) and "guidance_scale" in case.options
    own = re.fullmatch("the (processor|criterion|streamer) raises", str(error)) is not None
    scores = "nan row" in case.processors and "found invalid values" in str(error)
    own = own or scores or "no distribution" in str(error)
    return own or (unknown and isinstance(error, IndexError))


def _check_errors(case: Case, plain: Side, ours: Side) -> None:
    first, second = plain.error, ours.error
    plain_alone = _embeds_no_pad(case, first) or written_in_the_mode(first)
    if _in_columns(case, first) or (second is None and plain_alone):
        _check_left(case, plain, ours)
        return
    if why_loose(case, None) is not None and (second is None or _by_the_text(case, second)):
        return
    if first is None or second is None:
        what = "plain" if second is None else "ours"
        error = second or first
        raise Finding("exception", f"{what} alone: {type(error).__name__}: {_line(error)}")
    if _embeds_no_pad(case, first):
        _check_left(case, plain, ours)
        return
    nothing = "probability tensor contains" in str(first) and "no distribution" in str(second)
    earlier = "cannot be used with beam search" in str(first)  # checked before the inputs are
    unknown = isinstance(first, IndexError) and "input_ids must lie in" in str(second)
    # If a model lacks requested outputs, both fail. The baseline runs its processors first.
    processed = "the processor raises" in str(first) or isinstance(first, IndexError)
    lacking = processed and isinstance(second, AttributeError)
    lacking = lacking and "object has no attribute" in str(second)
    same = (type(first), _words(case, first)) == (type(second), _words(case, second))
    if not (same or nothing or earlier or unknown or lacking):
        texts = (f"{type(each).__name__}: {_line(each)}" for each in (second, first))
        raise Finding("exception", " in place of ".join(texts))
    seeded = why_loose(case, None) is None
    if seeded and not torch.equal(plain.random, ours.random):
        raise Finding("random numbers", f"another state after {_line(first)}")
    _check_left(case, plain, ours)


def _words(case: Case, error: Exception) -> str:
    """An error's message without what may differ: the tensor that torch's distributions print,
    which is rounded; with beams, whose prompts are prefilled once, the numbers of rows; and those
    of positions of a static cache, which has room for drafts."""
    words = str(error).partition("but found invalid values")[0]
    numbers = case.beams > 1 or case.options.get("cache_implementation") == "static"
    return re.sub(r"\d+", "N", words) if numbers else words


def _check_left(case: Case, plain: Side, ours: Side) -> None:
    """After a call that failed. What a model keeps for itself counts only if both have run as far
    on one model."""
    alone = plain.error is not None and type(ours.error) is not type(plain.error)
    if case.offload and alone:  # weights stay where plain's error interrupted it
        return
    changed = state.differences(plain.left, ours.left)
    kept = ("_previous_max_cache_length", "recurrent_states", "conv1d_state", "_forward_hooks")
    changed = [each for each in changed if not each.endswith((*kept, "_hooks_installed"))]
    if any(each in case.family for each in STATEFUL):
        changed = [each for each in changed if "_hook" not in each and "max_seq" not in each]
    if changed:
        raise Finding("left on the model", ", ".join(changed[:5]))


def _vocab(model: Any) -> int:
    head = getattr(model.get_output_embeddings(), "weight", None)
    return VOCAB if head is None else int(head.shape[0])


def _texts(case: Case, model: Any, plain: Side) -> list[list[int]]:
    """Each row's whole text without what its mask leaves out."""
    if not plain.outputs:
        return []
    rows = plain.sequences.tolist()
    vocab = _vocab(model)  # drafters never see ids outside it
    if model.config.is_encoder_decoder or case.inputs not in ("ids", "positions", "image"):
        return [[token for token in row if 0 <= token < vocab] for row in rows]
    _, mask = _ids(case, model)
    every = len(rows) // len(mask)
    masks = [each for each in mask.tolist() for _ in range(every)]
    if case.mask == "none":
        masks = [[] for _ in masks]
    return [
        [
            token
            for at, token in enumerate(row)
            if (at >= len(own) or own[at]) and 0 <= token < vocab
        ]
        for row, own in zip(rows, masks, strict=False)
    ]


def _line(error: BaseException | None) -> str:
    text = str(error).strip().partition("\n")[0]
    return (text or type(error).__name__)[:160]


# The plainest case that still fails in the same way


def shrink(
    case: Case, result: Result, runs: Callable[[Case], Result] = run, seconds: float = 30.0
) -> tuple[Case, Result]:
    """Simplify a failing case, one thing after another, while the same kind of thing fails.

    After some ``seconds`` the plainest one so far is good enough. ``runs`` runs a case.
    """
    end = time.monotonic() + seconds
    going = True
    while going:
        going = False
        for plainer in simpler(case):
            if time.monotonic() > end:
                return case, result
            try:
                now = runs(plainer)
            except Exception as error:
                now = Result("finding", "harness", type(error).__name__)
            if now.outcome == "finding" and _alike(now, result):
                case, result, going = plainer, now, True
                break
    return case, result


def _alike(first: Result, second: Result) -> bool:
    """Whether two findings are of one kind; exceptions also by their beginning."""
    if first.kind != second.kind:
        return False
    return first.kind != "exception" or first.detail[:40] == second.detail[:40]
