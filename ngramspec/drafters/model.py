"""A small model as a drafter (Leviathan et al. 2023), itself sped up by tables (section 3.6)."""

from __future__ import annotations

import copy
import logging
import math
import weakref
from collections.abc import Callable, Sequence
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from ngramspec.costs.policies import worthwhile_nodes
from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Float32, Int32
from ngramspec.drafters.base import Drafter, DraftModel, DraftSession, LearningDrafter
from ngramspec.drafters.known import NullDrafter
from ngramspec.drafters.priority import PriorityDrafter
from ngramspec.drafters.registry import quoted
from ngramspec.drafters.stochastic import distribution, proposal_of, sampled
from ngramspec.drafters.tables import CopyDrafter, NGramDrafter
from ngramspec.errors import check_bool, check_int, check_real
from ngramspec.stores import fingerprint

logger = logging.getLogger("ngramspec")

MAX_PROPOSAL_IDS = 1 << 20  # larger than any vocabulary


class ModelReader:
    """A draft model, which has read nothing yet, and what it has read since."""

    def __init__(self, model: DraftModel, top_k: int) -> None:
        self.model, self.top_k = model, top_k
        self._read: list[int] = []
        self._sure = 0  # length of a common prefix of the committed text and ``_read``
        self._known = 0  # committed tokens that the model can read, the first ones

    def fits(self, text: Sequence[int], more: int) -> bool:
        """Whether the model can read the committed ``text`` and ``more`` tokens after it."""
        if self.model.room is not None and len(text) + more > self.model.room:
            return False
        self._known += len(self.readable(text[self._known :]))
        return self._known == len(text)

    def readable(self, tokens: Sequence[int]) -> Sequence[int]:
        """The first of ``tokens``, up to the first one that the model has no embedding for."""
        vocab = self.model.vocab
        if vocab is None:
            return tokens
        end = next((at for at, token in enumerate(tokens) if token >= vocab), len(tokens))
        return tokens[:end]

    def rest(self, text: list[int], path: list[int], least: int = 1) -> list[int]:
        """Forget what differs; return what is not read, at least the ``least`` last tokens.

        ``text`` is committed, and ``path`` are the draft tokens after it. Neither is copied whole.
        """
        committed = len(text)
        end = min(len(self._read), committed + len(path) - least)
        at = min(self._sure, end)
        while at < end and self._read[at] == (text[at] if at < committed else path[at - committed]):
            at += 1
        self.forget(at)
        self._sure = min(at, committed)
        return text[at:] + path[max(at - committed, 0) :]

    def unread(self, committed: int) -> int:
        """How many of the committed tokens are not read, if it has read no others."""
        return max(committed - len(self._read), 0)

    def forget(self, length: int) -> None:
        """Keep the first ``length`` tokens read, or all if there are fewer."""
        del self._read[length:]
        self.model.truncate(len(self._read))

    def forward(self, tokens: Sequence[int], last: int) -> tuple[Int32, Float32]:
        """Read tokens; return the distributions after the ``last`` of them, see DraftModel."""
        self._read += tokens
        return self.model.forward(np.array(tokens, np.int32), last, self.top_k)


class ReadingSession(DraftSession):
    """Base of sessions with a model that reads the sequence, and with a session of tables."""

    tables: DraftSession

    def __init__(self, drafter: ModelDrafter, tables: DraftSession, tokens: Int32) -> None:
        self.drafter, self.tables = drafter, tables
        self.text: list[int] = tokens.tolist()  # committed
        self.reader: ModelReader | None = None
        self.temperature: float | None = None
        self._rng = np.random.default_rng(0)

    def begin_models(self, load: Callable[[Any], DraftModel]) -> None:
        self.reader = ModelReader(load(self.drafter), self.drafter.top_k)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        self.temperature = temperature
        self._rng = np.random.default_rng(seed)
        self.tables.begin_sampling(temperature, seed)

    def extend(self, tokens: Int32) -> None:
        self.text += tokens.tolist()
        self.tables.extend(tokens)

    def close(self) -> None:
        self.reader = None
        self.tables.close()


class ModelSession(ReadingSession):
    """Drafts for one sequence with a model.

    The tables guess the model's tokens, so that one forward of the model yields several. Each token
    is chosen from the model's own distribution, and a guess is right if it equals that token. So
    the tables change the number of forwards, but never the distribution of a draft.
    """

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        draft = self.propose_after(NO_TOKENS, gamma)
        if cost is None or draft.confidence is None:  # sampled tokens must not decide the length
            return draft
        return draft.first(worthwhile_nodes(np.cumprod(draft.confidence, dtype=np.float64), cost))

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        gamma = min(gamma, self.drafter.gamma)
        reader, path = self.reader, drafted.tolist()
        if reader is None or not (self.text or path):
            return EMPTY_DRAFT
        if reader.model.ahead is not None:
            gamma = min(gamma, reader.model.ahead - len(path))
        fits = gamma > 0 and reader.fits(self.text, len(path) + gamma)
        if not fits or len(reader.readable(path)) < len(path):
            return EMPTY_DRAFT
        reader.model.commit(len(self.text))
        return self._drafted(reader, path, gamma) if reader.model.ready else EMPTY_DRAFT

    def _drafted(self, reader: ModelReader, path: list[int], gamma: int) -> Draft:
        """Draft after the text and ``path`` until the next token is not probable enough."""
        unread = reader.rest(self.text, path)
        found: list[tuple[int, Int32, Float32]] = []
        going = True
        while going and len(found) < gamma:
            guess: list[int] = []  # the tables' guess of the model's next tokens
            if room := gamma - len(found) - 1:
                drafted = np.array(path, np.int32)
                guess = self.tables.propose_after(drafted, room).tokens[:room].tolist()
                guess = list(reader.readable(guess))
            ids, log_probs = reader.forward(unread + guess, 1 + len(guess))
            for at in range(1 + len(guess)):
                choice = self._choose(ids[at], log_probs[at])
                going = choice is not None
                if choice is None:
                    break
                found.append(choice)
                path.append(choice[0])
                if at == len(guess) or choice[0] != guess[at]:
                    break
            reader.forget(len(self.text) + len(path) - going)
            unread = path[-1:]
        return self._draft(found)

    def _choose(self, ids: Int32, log_probs: Float32) -> tuple[int, Int32, Float32] | None:
        """The model's next token and its distribution; None: stop, decided before sampling.

        Without a temperature, the token is the most probable one, with its own probability alone.
        """
        if not log_probs[0] >= self.drafter.least:  # also stops at NaN
            return None
        if self.temperature is None:
            return int(ids[0]), ids[:1], np.exp(log_probs[:1])
        ids, probs = distribution(ids, log_probs, self.temperature)
        return sampled(ids, probs, self._rng)[0], ids, probs

    def _draft(self, found: list[tuple[int, Int32, Float32]]) -> Draft:
        if not found:
            return EMPTY_DRAFT
        tokens = np.array([token for token, _, _ in found], np.int32)
        proposal = proposal_of([(ids, probs) for _, ids, probs in found])
        if self.temperature is not None:
            return Draft(tokens, proposal=proposal)
        return Draft(tokens, confidence=np.minimum(proposal.probs, np.float32(1)))


class ModelDrafter(LearningDrafter):
    """Drafts with a small model that shares the target's tokenizer.

    In greedy requests it drafts the model's most probable tokens while they are probable enough.
    In sampled requests it samples at the request's temperature, and Algorithm 1 uses the
    distribution that was sampled from. Sequences share the model's weights, and each has a separate
    cache. Engines other than the package's own loop run no drafting model: there it drafts nothing.

    Args:
        path: a causal language model of transformers, or the path of a local folder with one, which
            is loaded at the first call, to the target's device and dtype.
        gamma: maximum number of draft tokens (num_speculative_tokens), >= 1. In "auto+model(...)",
            gamma, threshold and tables have no effect.
        threshold: stop before a token that the model gives a lower probability; in (0, 1].
        top_k: number of most probable ids that a token is sampled from; None: all.
        tables: whether copies and n-grams guess the model's tokens, to save forwards of the model.
    """

    source_names = ("model",)
    estimates = True
    reads_states = False  # whether its model reads the target's hidden states
    learned = ("loaded",)
    same_tokenizer = False  # whether its model is known to have the target's tokenizer
    tables: Drafter  # which guess the model's tokens
    _assistant: Any = None

    def __init__(
        self,
        path: Any,
        gamma: int = 8,
        threshold: float = 0.4,
        top_k: int | None = 64,
        tables: bool = True,
    ) -> None:
        if not self.takes(path):
            raise TypeError(f"path must be a model or the folder of one, got {path!r}")
        path = str(path) if isinstance(path, PathLike) else path
        self._assistant = path
        self._begin(gamma, threshold, top_k)
        if check_bool("tables", tables):
            self.tables = PriorityDrafter([CopyDrafter(), NGramDrafter()])
        if isinstance(path, str):
            settings = f"gamma={gamma},threshold={self.threshold},top_k={top_k},tables={tables}"
            self.spec = f"model({quoted(path)},{settings})"

    def _begin(self, gamma: int, threshold: float, top_k: int | None) -> None:
        self.gamma = check_int("gamma", gamma, 1)
        self.threshold = check_real("threshold", threshold, 0.0, 1.0)
        self.least = math.log(self.threshold)
        self.top_k = (
            MAX_PROPOSAL_IDS if top_k is None else check_int("top_k", top_k, 1, MAX_PROPOSAL_IDS)
        )
        self.tables = NullDrafter()
        self.forget()

    @staticmethod
    def takes(path: Any) -> bool:
        """Whether it can be made for ``path``."""
        return isinstance(path, str | PathLike) or hasattr(path, "config")

    def same_as(self, other: ModelDrafter) -> bool:
        """Whether another drafter has the same model and the same arguments."""
        same = self.assistant is other.assistant if self.spec is None else self.spec == other.spec
        return type(self) is type(other) and same and self.same_tokenizer == other.same_tokenizer

    @property
    def assistant(self) -> Any:
        """The model, or the path of its folder; None: it is the target's, or no longer exists."""
        held = self._assistant
        return held() if isinstance(held, weakref.ref) else held

    def held_weakly(self) -> ModelDrafter:
        """A copy that does not keep a model that was passed to it alive."""
        other = copy.copy(self)
        if self.spec is None:
            other._assistant = weakref.ref(self.assistant)
        return other

    @property
    def assistants(self) -> tuple[Any, ...]:  # type: ignore[override]
        """Itself: its model is loaded when a call begins."""
        return (self,)

    def forget(self) -> None:
        # The folder's models, by target: other drafters with the folder share them.
        self.loaded: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def __deepcopy__(self, memo: dict[int, Any]) -> ModelDrafter:
        """A copy that shares the model's weights."""
        return copy.copy(self)

    def start(self, tokens: Int32) -> DraftSession:
        return ModelSession(self, self.tables.start(tokens), tokens)


def same_vocabulary(one: Any, other: Any) -> bool | None:
    """Whether every id has the same piece in two tokenizers; None: one of them is not known."""
    if one is not None and one is other:
        return True
    own, others = _fingerprint_of(one), _fingerprint_of(other)
    return None if own is None or others is None else own == others


def _fingerprint_of(tokenizer: Any) -> str | None:
    if not isinstance(tokenizer, Path):
        return None if tokenizer is None else fingerprint(tokenizer)
    try:
        state = tokenizer.stat()
    except OSError:
        return None
    return _fingerprint_of_file(str(tokenizer), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _fingerprint_of_file(path: str, modified: int, size: int) -> str | None:
    """The fingerprint of a tokenizer.json, by the time and size that tell its versions apart."""
    from tokenizers import Tokenizer

    try:
        return fingerprint(Tokenizer.from_file(path))
    except Exception as error:  # tokenizers raises no narrower class
        logger.warning("the tokenizer in %s cannot be read: %r", path, error)
        return None
