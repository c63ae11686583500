"""Drafters whose alpha is measured, in addition to the package's own (Leviathan et al., 3.6, 4.2).

Unigram and bigram models that were trained on the target's own outputs, random tokens, and a
smaller model. Their distributions are standardised as the target's are: at temperature 0 they draft
their most probable token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.drafters.stochastic import proposal_of, sampled
from ngramspec.hf_model.compat.caches import cache_argument, new_cache


class CountModel:
    """A unigram or bigram model (order 1 or 2): the relative frequencies in some texts.

    An unknown context of a bigram falls back to the unigram. Without any token, a ValueError is
    raised. ``CountModel([range(vocab)], 1)`` draws random tokens (Leviathan et al., section 3.6).
    """

    def __init__(self, texts: Iterable[Sequence[int]], order: int) -> None:
        counts: Counter[int] = Counter()
        follow: dict[int, Counter[int]] = {}
        for text in texts:
            counts.update(text)
            for before, token in pairwise(text) if order == 2 else ():
                follow.setdefault(before, Counter())[token] += 1
        if not counts:
            raise ValueError("a count model needs a text to be trained on")
        self._unigram = _frequencies(counts)
        self._bigrams = {each: _frequencies(found) for each, found in follow.items()}

    def following(self, last: int | None) -> tuple[Int32, Float32]:
        """The ids that may follow a token, or None for the start, and their probabilities."""
        return self._unigram if last is None else self._bigrams.get(last, self._unigram)


def _frequencies(counts: Counter[int]) -> tuple[Int32, Float32]:
    ids = np.array(sorted(counts), np.int32)
    values = np.array([counts[int(each)] for each in ids], np.float64)
    return ids, (values / values.sum()).astype(np.float32)


class _SamplingSession(DraftSession):
    """Drafts at the request's temperature; at 0 until ``begin_sampling``."""

    def __init__(self) -> None:
        self._temperature = 0.0
        self._rng = np.random.default_rng(0)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        self._temperature = temperature
        self._rng = np.random.default_rng(seed)

    def _choose(self, ids: Int32, probs: Float32) -> tuple[int, Int32, Float32]:
        """A token of q at the temperature, and q without ids that have no probability then."""
        if not self._temperature:
            return int(ids[probs.argmax()]), ids, probs
        weights = (probs.astype(np.float64) / probs.max()) ** (1 / self._temperature)
        heated = (weights / weights.sum()).astype(np.float32)
        ids, heated = ids[heated > 0], heated[heated > 0]
        return sampled(ids, heated, self._rng)[0], ids, heated

    def _draft(self, found: Sequence[tuple[int, Int32, Float32]]) -> Draft:
        """The draft of chosen tokens and their q."""
        if not found:
            return EMPTY_DRAFT
        tokens = np.array([token for token, _, _ in found], np.int32)
        if not self._temperature:
            return Draft(tokens)
        return Draft(tokens, proposal=proposal_of([(ids, probs) for _, ids, probs in found]))


class ModelDrafter(Drafter):
    """Draws each token from a model, or its most probable one in requests without sampling."""

    def __init__(self, model: CountModel, name: str) -> None:
        self.model = model
        self.source_names = (name,)

    def start(self, tokens: Int32) -> DraftSession:
        return _ModelSession(self.model, tokens)


class _ModelSession(_SamplingSession):
    def __init__(self, model: CountModel, tokens: Int32) -> None:
        super().__init__()
        self.model = model
        self._last = int(tokens[-1]) if len(tokens) else None

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        last, found = self._last, []
        for _ in range(gamma):
            found.append(self._choose(*self.model.following(last)))
            last = found[-1][0]
        return self._draft(found)

    def extend(self, tokens: Int32) -> None:
        if len(tokens):
            self._last = int(tokens[-1])


class SmallModelDrafter(Drafter):
    """Drafts with another causal language model of the same vocabulary, in eval mode."""

    source_names = ("model",)

    def __init__(self, model: Any) -> None:
        self.model = model

    def start(self, tokens: Int32) -> DraftSession:
        return _SmallModelSession(self.model, tokens)


class _SmallModelSession(_SamplingSession):
    def __init__(self, model: Any, tokens: Int32) -> None:
        super().__init__()
        self.model = model
        self._cache: Any = new_cache(model.config)
        self._ahead: Any = None  # logits after all committed tokens
        self._pending = tokens.tolist()

    def extend(self, tokens: Int32) -> None:
        self._pending += tokens.tolist()

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        if self._pending:
            self._ahead, self._pending = self._forward(self._pending), []
        if self._ahead is None:
            return EMPTY_DRAFT
        committed = self._cache.get_seq_length()
        logits, found = self._ahead, []
        for number in range(gamma):
            probs = torch.softmax(logits.float(), dim=-1).cpu().numpy()
            ids = np.flatnonzero(probs).astype(np.int32)
            found.append(self._choose(ids, probs[ids]))
            if number + 1 < gamma:
                logits = self._forward([found[-1][0]])
        if (drafted := self._cache.get_seq_length() - committed) > 0:
            self._cache.crop(-drafted)
        return self._draft(found)

    @torch.no_grad()
    def _forward(self, tokens: list[int]) -> torch.Tensor:
        ids = torch.tensor([tokens], device=self.model.device)
        out = self.model(input_ids=ids, **cache_argument(self._cache), use_cache=True)
        logits: torch.Tensor = out.logits[0, -1]
        return logits
