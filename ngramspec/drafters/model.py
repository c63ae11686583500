"""A small model as a drafter (Leviathan et al. 2023), itself sped up by tables (section 3.6)."""

from __future__ import annotations

import copy
import math
import weakref
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np

from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Float32, Int32, Proposal
from ngramspec.draft_length.optimal import worthwhile_nodes
from ngramspec.drafters.base import Drafter, DraftModel, DraftSession, LearningDrafter
from ngramspec.drafters.copy import CopyDrafter
from ngramspec.drafters.ngram import NGramDrafter
from ngramspec.drafters.null import NullDrafter
from ngramspec.drafters.tiers import TieredDrafter
from ngramspec.errors import check_bool, check_int, check_real
from ngramspec.stores.fingerprint import fingerprint

MAX_PROPOSAL_IDS = 1 << 20  # larger than any vocabulary


def fingerprint_of(tokenizer: Any) -> str | None:
    """The fingerprint of a tokenizer, see ``stores.fingerprint``; None: there is no tokenizer."""
    return None if tokenizer is None else fingerprint(tokenizer)


class ModelSession(DraftSession):
    """Drafts for one sequence with a model.

    The model reads the committed text and its own draft. The tables guess the model's tokens, so
    that one forward of the model yields several: each token is chosen from the model's own
    distribution, and a guess is right if it equals that token. The tables therefore change the
    number of forwards, but never the distribution of a draft.
    """

    def __init__(self, drafter: ModelDrafter, tokens: Int32) -> None:
        self.drafter = drafter
        self.tables = drafter.tables.start(tokens)
        self.text: list[int] = tokens.tolist()  # committed
        self.read: list[int] = []  # what the model has read
        self.sure = 0  # length of a common prefix of text and read
        self.model: DraftModel | None = None
        self.forwards = 0
        self.temperature: float | None = None
        self._rng = np.random.default_rng(0)

    def begin_models(self, load: Callable[[Any], DraftModel]) -> None:
        self.model = load(self.drafter)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        self.temperature = temperature
        self._rng = np.random.default_rng(seed)
        self.tables.begin_sampling(temperature, seed)

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        draft = self.propose_after(NO_TOKENS, gamma)
        if cost is None or draft.confidence is None:  # sampled tokens must not decide the length
            return draft
        return draft.first(worthwhile_nodes(np.cumprod(draft.confidence, dtype=np.float64), cost))

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        gamma = min(gamma, self.drafter.gamma)
        model, text = self.model, self.text + drafted.tolist()
        if model is None or not text or gamma < 1:
            return EMPTY_DRAFT
        if model.room is not None and len(text) + gamma > model.room:
            return EMPTY_DRAFT
        return self._drafted(model, text, gamma)

    def _drafted(self, model: DraftModel, text: list[int], gamma: int) -> Draft:
        """Draft after ``text`` until the next token is not probable enough."""
        unread = text[self._agree(model, text) :]
        found: list[tuple[int, Int32, Float32]] = []
        going = True
        while going and len(found) < gamma:
            guess = self._guess(text[len(self.text) :], gamma - len(found) - 1)
            ids, log_probs = self._forward(model, unread + guess, 1 + len(guess))
            for at in range(1 + len(guess)):
                choice = self._choose(ids[at], log_probs[at])
                going = choice is not None
                if choice is None:
                    break
                found.append(choice)
                text.append(choice[0])
                if at == len(guess) or choice[0] != guess[at]:
                    break
            self._forget(model, min(len(text) - going, len(self.read)))
            unread = text[-1:]
        return self._draft(found)

    def _agree(self, model: DraftModel, text: list[int]) -> int:
        """Discard what the model has read that differs from ``text``; return the remaining length.

        At least the last token is read again, because the distribution after it is needed.
        """
        at, most = self.sure, min(len(self.read), len(text) - 1)
        while at < most and self.read[at] == text[at]:
            at += 1
        at = min(at, most)
        self._forget(model, at)
        self.sure = min(at, len(self.text))
        return at

    def _forget(self, model: DraftModel, length: int) -> None:
        del self.read[length:]
        model.truncate(length)

    def _forward(self, model: DraftModel, tokens: list[int], last: int) -> tuple[Int32, Float32]:
        self.read += tokens
        self.forwards += 1
        return model.forward(np.array(tokens, np.int32), last, self.drafter.most)

    def _guess(self, drafted: list[int], room: int) -> list[int]:
        """The tables' guess of the model's next tokens."""
        if room < 1:
            return []
        guess = self.tables.propose_after(np.array(drafted, np.int32), room)
        tokens: list[int] = guess.tokens[:room].tolist()
        return tokens

    def _choose(self, ids: Int32, log_probs: Float32) -> tuple[int, Int32, Float32] | None:
        """The model's next token and the distribution it was chosen from; None: stop drafting.

        Whether to stop is decided before the token is sampled. Without a temperature, the token is
        the most probable one, and only its own probability is returned.
        """
        if not log_probs[0] >= self.drafter.least:  # also stops at NaN
            return None
        if self.temperature is None:
            return int(ids[0]), ids[:1], np.exp(log_probs[:1])
        weights = np.exp((log_probs - log_probs[0]).astype(np.float64) / self.temperature)
        probs = (weights / weights.sum()).astype(np.float32)
        live = probs > 0
        ids, probs = ids[live], probs[live]
        which = int(self._rng.choice(len(ids), p=probs / probs.sum(dtype=np.float64)))
        return int(ids[which]), ids, probs

    def _draft(self, found: list[tuple[int, Int32, Float32]]) -> Draft:
        if not found:
            return EMPTY_DRAFT
        tokens = np.array([token for token, _, _ in found], np.int32)
        probs = np.concatenate([probs for _, _, probs in found])
        if self.temperature is None:
            return Draft(tokens, confidence=np.minimum(probs, np.float32(1)))
        starts = np.cumsum([0, *(len(ids) for _, ids, _ in found)]).astype(np.int32)
        ids = np.concatenate([ids for _, ids, _ in found])
        return Draft(tokens, proposal=Proposal(starts, ids, probs))

    def extend(self, tokens: Int32) -> None:
        self.text += tokens.tolist()
        self.tables.extend(tokens)

    def close(self) -> None:
        self.model = None
        self.tables.close()


class ModelDrafter(LearningDrafter):
    """Drafts with a small model that shares the target's tokenizer.

    In greedy requests it drafts the model's most probable tokens while they are probable enough.
    In sampled requests it samples at the request's temperature, and Algorithm 1 uses the
    distribution that was sampled from. Sequences share the model's weights, and each has a separate
    cache. Engines other than the package's own loop run no drafting model: there it drafts nothing.

    Args:
        path: a causal language model of transformers, or the path of a local folder with one, which
            is loaded at the first call, to the target's device and dtype.
        gamma: maximum number of draft tokens (num_speculative_tokens), >= 1.
        threshold: stop before a token that the model gives a lower probability; in (0, 1].
        most: number of most probable ids that a token is sampled from; None: all.
        tables: whether copies and n-grams guess the model's tokens, to save forwards of the model.
    """

    tiers = ("model",)
    estimates = True
    learned = ("loaded", "checked_for")

    def __init__(
        self,
        path: Any,
        gamma: int = 8,
        threshold: float = 0.4,
        most: int | None = 64,
        tables: bool = True,
    ) -> None:
        if not isinstance(path, str | PathLike) and not hasattr(path, "config"):
            raise TypeError(f"path must be a model or the folder of one, got {path!r}")
        path = str(path) if isinstance(path, PathLike) else path
        self.assistant = path
        self.gamma = check_int("gamma", gamma, 1)
        self.threshold = check_real("threshold", threshold, 0.0, 1.0)
        self.least = math.log(self.threshold)
        self.most = (
            MAX_PROPOSAL_IDS if most is None else check_int("most", most, 1, MAX_PROPOSAL_IDS)
        )
        speeds_up = check_bool("tables", tables)
        self.tables: Drafter
        self.tables = TieredDrafter([CopyDrafter(), NGramDrafter()]) if speeds_up else NullDrafter()
        if isinstance(path, str):
            own = f"gamma={gamma},threshold={self.threshold},most={most},tables={tables}"
            self.spec = f"model({path},{own})"
        self.forget()

    @property
    def assistants(self) -> tuple[Any, ...]:  # type: ignore[override]
        """Itself: its model is loaded when a call begins."""
        return (self,)

    def forget(self) -> None:
        self.loaded: Any = None  # the folder's model
        self.checked_for: weakref.ref[Any] | None = None  # the target that it was compared with

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelDrafter:
        """A copy that shares the model's weights."""
        return copy.copy(self)

    def start(self, tokens: Int32) -> DraftSession:
        return ModelSession(self, tokens)
