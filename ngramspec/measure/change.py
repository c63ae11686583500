"""Measures how much lossy verification changes whole texts, while decoding with it.

A step verifies the tokens of its draft in order. So each token of the text was chosen either with a
drafted token x, sampled from q, or without a draft. Its distribution follows from p, q and the
lenience (Leviathan et al. 2023, A.5). At temperature 0 the text itself shows where it differs from
the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ngramspec import Speculator, StepEvent, generate
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession, ForwardingSession
from ngramspec.measure.alpha import dense_proposal
from ngramspec.measure.configurations import inputs_of
from ngramspec.theory import acceptance as closed


@dataclass(slots=True)
class Change:
    """The measurements on the texts of one Speculator.

    ``texts`` has for each text an unbiased estimate of the total variation between the target's
    texts and these, max(0, 1 - P(text) / Q(text)); None if drafts were sampled, of which Q would be
    the mean over all drafts.
    """

    moved: list[float] = field(default_factory=list)  # total variation from p, for each token
    surprise: list[float] = field(default_factory=list)  # -log p of each token, not standardised
    texts: list[float | None] = field(default_factory=list)

    @property
    def mean_moved(self) -> float:
        """The mean total variation of a token."""
        return float(np.mean(self.moved)) if self.moved else 0.0

    @property
    def perplexity(self) -> float:
        """The perplexity of the texts under the target."""
        return float(np.exp(np.mean(self.surprise))) if self.surprise else 1.0

    @property
    def text_moved(self) -> float | None:
        """The mean of ``texts``; None if an entry is None, or there is no text."""
        known = [each for each in self.texts if each is not None]
        return float(np.mean(known)) if known and len(known) == len(self.texts) else None


class Recorder(Drafter):
    """Wraps another drafter and keeps its last draft, which ``take`` returns."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner
        self.source_names, self.estimates = inner.source_names, inner.estimates
        self.branches, self.evidence = inner.branches, inner.evidence
        self.last = EMPTY_DRAFT

    def start(self, tokens: Int32) -> DraftSession:
        return _RecordedSession(self, self.inner.start(tokens))

    def take(self) -> Draft:
        """Return the last draft and forget it."""
        draft, self.last = self.last, EMPTY_DRAFT
        return draft


class _RecordedSession(ForwardingSession):
    def __init__(self, recorder: Recorder, inner: DraftSession) -> None:
        super().__init__(inner)
        self.recorder = recorder

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        self.recorder.last = draft = self.inner.propose(gamma, cost, tree=tree)
        return draft


def decode(
    model: Any, prompt: Sequence[int], speculator: Speculator, change: Change, **arguments: Any
) -> list[int]:
    """Generate the new tokens of one text with chains, and add its measurements to ``change``.

    The speculator's drafter is a Recorder, its verification "exact". ``arguments`` are those of
    ``generate``; "do_sample" is among them.
    """
    recorder = speculator.drafter
    assert isinstance(recorder, Recorder)
    verified: list[tuple[Draft, int] | None] = []  # for each token the draft and its node, or None

    def note(event: StepEvent) -> None:
        draft, count = recorder.take(), len(event.drafted)
        verified.extend(
            (draft, node) if node < count else None for node in range(len(event.verdict.emitted))
        )

    speculator.on_step = note
    try:
        out = generate(
            model,
            **inputs_of(model, prompt),
            speculator=speculator,
            output_scores=True,
            return_dict_in_generate=True,
            **arguments,
        )
    finally:
        speculator.on_step = None
    text: list[int] = out.sequences[0, -len(out.scores) :].tolist()
    add(change, text, out.scores, verified, speculator.lenience, bool(arguments["do_sample"]))
    return text


def add(
    change: Change,
    text: Sequence[int],
    scores: Sequence[torch.Tensor],
    verified: Sequence[tuple[Draft, int] | None],
    lenience: float,
    do_sample: bool,
) -> None:
    """Add the measurements of one text to ``change``.

    Each token has scores, float32 (1, vocab), after all processors, and the draft and its node that
    it was compared with, or None. Without sampling, the target's distribution is its most probable
    token.
    """
    ratio = 0.0  # log P(text) - log Q(text)
    sampled = False
    for token, row, spot in zip(text, scores, verified, strict=True):
        p = torch.softmax(row[0].double(), dim=-1).cpu().numpy()
        change.surprise.append(-float(np.log(max(p[token], 1e-300))))
        if not do_sample:
            moved = float(p[token] < p.max())
            ratio += -np.inf if moved else 0.0
        elif spot is None:
            moved = 0.0
        else:
            emitted = closed.output(p, dense_proposal(*spot, len(p)), lenience)
            moved = float(np.abs(emitted - p).sum() / 2)
            ratio += float(np.log(p[token]) - np.log(max(emitted[token], 1e-300)))
            sampled |= spot[0].proposal is not None
        change.moved.append(moved)
    change.texts.append(None if sampled else max(0.0, -float(np.expm1(ratio))))
