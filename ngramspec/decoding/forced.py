"""Jump-forward decoding: tokens that a call's grammar leaves no alternative to.

The grammar's matcher is copied, the copy accepts the last committed token, and then gives the
forced continuation. It can be a million characters long. It is kept while committed tokens spell
it, and asked for again at its end. The processor is never called, and its matchers do not change.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import finalize

import numpy as np

from ngramspec.costs.policies import worthwhile_nodes
from ngramspec.draft import EMPTY_DRAFT, Draft, Float32, Int32, Nodes, Observed
from ngramspec.drafters.base import (
    MAX_SOURCES,
    Drafter,
    DraftSession,
    ForwardingSession,
    call_observe,
    verified_count,
)

logger = logging.getLogger("ngramspec")

FORCED_SOURCE = "forced"
# Accepted and verified forced tokens that the counts begin with: all but the last, and the last,
# which a longer token may replace.
PRIOR_COUNTS, PRIOR_COUNTS_LAST = (19, 20), (1, 2)

MAX_ALLOWED = 64  # tokens at a state of outlines-core's index beyond which there is a choice
MAX_TOKEN_BYTES = 64  # longest token that ``spelled`` tries; not tuned
ALL_BYTES = [bytes((each,)) for each in range(256)]
CONTINUATION_BYTES = bytes(range(0x80, 0xC0))
MASK_WORD_BITS = 32  # bits of a word of xgrammar's masks
Spelling = dict[bytes, int]  # token ids by their text
# From a session's committed tokens, to which each call may add, and the number >= 1 of tokens that
# are needed, to the tokens that have to follow; empty: there is a choice.
Forced = Callable[[Sequence[int], int], list[int]]

# The text of each token, and their reverse, by the ``id`` of a live compiled grammar.
_spellings: dict[int, tuple[Sequence[bytes], Spelling]] = {}


class ForcedDrafter(Drafter):
    """Drafts forced tokens where there are any, otherwise what another drafter drafts.

    A grammar forces characters, and the target may encode them in other tokens. Each session counts
    how often it does, separately for the last token of a forced continuation.
    """

    def __init__(self, inner: Drafter, forced: Callable[[], Forced]) -> None:
        self.inner = inner
        self.forced = forced
        self.estimates = inner.estimates
        self.branches = inner.branches
        self.evidence, self.assistants = inner.evidence, inner.assistants

    @property
    def source_names(self) -> tuple[str, ...]:  # type: ignore[override]
        """The inner drafter's sources, and one for forced tokens."""
        return (*self.inner.source_names, FORCED_SOURCE)

    def start(self, tokens: Int32) -> DraftSession:
        return _ForcedSession(self, self.inner.start(tokens), tokens)


def with_forced(
    forced: Callable[[], Forced], given_to: Callable[[Drafter], Drafter], drafter: Drafter
) -> Drafter:
    """A drafter with a row's stores, and with forced tokens if it has room for another source."""
    own = given_to(drafter)
    return own if len(own.source_names) >= MAX_SOURCES else ForcedDrafter(own, forced)


class _ForcedSession(ForwardingSession):
    def __init__(self, drafter: ForcedDrafter, inner: DraftSession, tokens: Int32) -> None:
        super().__init__(inner)
        self._forced = drafter.forced()
        self._source = len(drafter.source_names) - 1
        self._context: list[int] = tokens[-1:].tolist()
        self._counts = [list(PRIOR_COUNTS), list(PRIOR_COUNTS_LAST)]
        self._broken = False
        self._mine = 0  # forced tokens of the last draft; 0: the inner session drafted it

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Draft the forced tokens, unless the inner draft begins with them."""
        forced = self._after(gamma)
        confidence = self._confidence(len(forced))
        if forced and cost is not None:
            forced = forced[: worthwhile_nodes(np.cumprod(confidence, dtype=np.float64), cost)]
        self._mine = len(forced)
        if not forced:
            return self.inner.propose(gamma, cost, tree=tree)
        draft = self.inner.propose(gamma, cost)
        agrees = draft.proposal is None and draft.tokens[: len(forced)].tolist() == forced
        if agrees and draft.parents is None:
            self._mine = 0
            return draft
        source = np.full(len(forced), self._source, np.int8)
        return Draft(np.array(forced, np.int32), None, confidence[: len(forced)], None, source)

    def _after(self, max_tokens: int) -> list[int]:
        """The forced tokens; always empty after an error, which is logged."""
        if max_tokens < 1 or self._broken:
            return []
        try:
            return self._forced(self._context, max_tokens)[:max_tokens]
        except Exception as error:
            self._broken = True
            kind = type(error).__name__  # the message can quote the text
            logger.warning("jump-forward decoding is disabled after an error: %s", kind)
            return []

    def _confidence(self, count: int) -> Float32:
        """P(accepted | those before accepted) of each of ``count`` forced tokens, float32."""
        within, last = (accepted / verified for accepted, verified in self._counts)
        return np.array([within] * (count - 1) + [last] * (count > 0), np.float32)

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        if not self._mine:
            super().observe(draft, accepted, verified, evidence)
            return
        if evidence is not None:
            call_observe(self.inner, EMPTY_DRAFT, (), None, evidence)
        for node in range(verified_count(draft, accepted, verified)):
            counts = self._counts[node == self._mine - 1]
            counts[0] += node < len(accepted)
            counts[1] += 1

    def extend(self, tokens: Int32) -> None:
        self._context += tokens.tolist()
        super().extend(tokens)


def forced_by(processors: Iterable[Any] | None, row: int, rows: int) -> Callable[[], Forced] | None:
    """Makes a session's source of a row's forced tokens by the first known grammar, if any."""
    for processor in processors or ():
        kind = type(processor)
        known = MATCHERS.get((kind.__module__, kind.__name__))
        if known is not None:
            matchers, source = known
            return partial(source, processor, matchers, row, rows)
    return None


class _Matched(ABC):
    """Forced tokens by the row's matcher, in the processor's attribute ``matchers``."""

    def __init__(self, processor: Any, matchers: str, row: int, rows: int) -> None:
        self._processor, self._matchers = processor, matchers
        self._row, self._rows = row, rows

    @abstractmethod
    def __call__(self, context: Sequence[int], max_tokens: int) -> list[int]:
        """See Forced."""

    def _matcher(self) -> Any:
        """The row's matcher; None before the first call, when matchers may be an earlier call's."""
        begun = getattr(self._processor, "prefilled", True)
        fresh = getattr(self._processor, "is_first_token", False)
        matchers = getattr(self._processor, self._matchers, ())
        ready = begun and not fresh and len(matchers) == self._rows
        return matchers[self._row] if ready else None


class _Grammar(_Matched):
    """Forced text, which is split into tokens."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._text, self._at = b"", 0  # forced text, and how much of it is committed
        self._read = 0  # number of committed tokens that are known

    def __call__(self, context: Sequence[int], max_tokens: int) -> list[int]:
        matcher = self._matcher()
        if matcher is None or not context:
            return []
        self._follow(context)
        copy = None
        if self._at >= len(self._text):
            copy = self._copy(matcher, context[-1])
            if copy is None:
                return []
            self._text, self._at = self._jump(copy), 0
        end = self._at + max_tokens * MAX_TOKEN_BYTES
        found = self._spelled(self._text[self._at : end], max_tokens)
        if len(found) < max_tokens:
            copy = copy or self._copy(matcher, context[-1])
            found += [] if copy is None else self._end(copy, found)
        return found

    def _follow(self, context: Sequence[int]) -> None:
        """Move to the end of what is committed, or of the text if it is spelled differently."""
        for token in context[self._read :]:
            if self._at >= len(self._text):
                break
            piece = self._piece(token)
            spells = piece and self._text.startswith(piece, self._at)
            self._at += len(piece) if spells else len(self._text)
        self._read = len(context)

    @abstractmethod
    def _copy(self, matcher: Any, token: int) -> Any:
        """A copy of a matcher that has accepted a token; None if the text has ended before."""

    @abstractmethod
    def _jump(self, copy: Any) -> bytes:
        """The text that a matcher forces."""

    @abstractmethod
    def _piece(self, token: int) -> bytes:
        """The text of a token."""

    @abstractmethod
    def _spelled(self, text: bytes, max_tokens: int) -> list[int]:
        """At most ``max_tokens`` tokens of a text."""

    @abstractmethod
    def _end(self, copy: Any, found: list[int]) -> list[int]:
        """The token that has to end the text after the tokens ``found``; empty if none has to."""


class _XGrammar(_Grammar):
    """Forced tokens by xgrammar, which gives bytes: they are split into the longest tokens."""

    def _copy(self, matcher: Any, token: int) -> Any:
        copy = None if matcher.is_terminated() else matcher.fork()
        ends = copy is None or not copy.accept_token(token) or copy.is_terminated()
        return None if ends else copy

    def _jump(self, copy: Any) -> bytes:
        return _jump_forward(copy)

    def _piece(self, token: int) -> bytes:
        return _spelling(self._grammar)[0][token]

    def _spelled(self, text: bytes, max_tokens: int) -> list[int]:
        return spelled(text, _spelling(self._grammar)[1], max_tokens)

    def _end(self, copy: Any, found: list[int]) -> list[int]:
        if all(copy.accept_token(token) for token in found) and copy.is_completed():
            return _only(copy, self._grammar.tokenizer_info.vocab_size)
        return []

    @property
    def _grammar(self) -> Any:
        several = getattr(self._processor, "compiled_grammars", None)
        return several[self._row] if several else self._processor.compiled_grammar


def _jump_forward(matcher: Any) -> bytes:
    """The bytes that a matcher forces, without an incomplete character at their end.

    xgrammar can give them only as a string. If they are not one, its error has them.
    """
    try:
        text: str = matcher.find_jump_forward_string()
        return text.encode()
    except UnicodeDecodeError as error:
        begun = error.object.lstrip(CONTINUATION_BYTES)  # of a character that was begun before
        whole = utf_8_decode(begun, "replace", False)[1]
        return error.object[: len(error.object) - len(begun) + whole]


def _spelling(grammar: Any) -> tuple[Sequence[bytes], Spelling]:
    """The vocabulary of a compiled grammar, made once and kept while the grammar exists."""
    found = _spellings.get(id(grammar))
    if found is None:
        names = grammar.tokenizer_info.decoded_vocab
        found = names, spelling_of(names)
        _spellings[id(grammar)] = found
        finalize(grammar, _spellings.pop, id(grammar), None)
    return found


def spelling_of(names: Sequence[bytes]) -> Spelling:
    """The first token of each text; those of byte fallback only for bytes without another one.

    The tokens of byte fallback follow each other in the vocabulary.
    """
    zeros = (token for token, name in enumerate(names) if name == ALL_BYTES[0])
    first = next((token for token in zeros if list(names[token : token + 256]) == ALL_BYTES), None)
    tokens = list(range(len(names)))
    if first is not None:
        tokens = tokens[:first] + tokens[first + 256 :] + tokens[first : first + 256]
    found: Spelling = {}
    for token in tokens:
        found.setdefault(names[token], token)
    return found


def spelled(text: bytes, spelling: Spelling, max_tokens: int) -> list[int]:
    """Split a text into at most ``max_tokens`` tokens, each the longest match, until none matches.

    Example:
        >>> spelled(b"abcd", {b"a": 1, b"ab": 2, b"c": 3}, 8)
        [2, 3]
    """
    found: list[int] = []
    at = 0
    while at < len(text) and len(found) < max_tokens:
        ends = range(min(len(text), at + MAX_TOKEN_BYTES), at, -1)
        fits = next((end for end in ends if text[at:end] in spelling), None)
        if fits is None:
            break
        found.append(spelling[text[at:fits]])
        at = fits
    return found


def _only(matcher: Any, vocab: int) -> list[int]:
    """The only allowed token, such as the end of the sequence; empty if there are several."""
    words = np.zeros((1, -(-vocab // MASK_WORD_BITS)), np.int32)
    matcher.fill_next_token_bitmask(words)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")
    left: list[int] = np.flatnonzero(bits).tolist()
    return left if len(left) == 1 else []


class _LLGuidance(_Grammar):
    """Forced tokens by llguidance, which gives tokens. Their text can be committed in others."""

    def _copy(self, matcher: Any, token: int) -> Any:
        copy = None if matcher.is_stopped() else matcher.deep_copy()
        return None if copy is None or not copy.consume_token(token) else copy

    def _jump(self, copy: Any) -> bytes:
        tokens = [] if copy.is_stopped() else copy.compute_ff_tokens()
        found: bytes = self._tokenizer.decode_bytes(tokens)
        return found

    def _piece(self, token: int) -> bytes:
        found: bytes = self._tokenizer.decode_bytes([token])
        return found

    def _spelled(self, text: bytes, max_tokens: int) -> list[int]:
        return list(self._tokenizer.tokenize_bytes(text)[:max_tokens])

    def _end(self, copy: Any, found: list[int]) -> list[int]:
        ends = copy.is_stopped() or (copy.consume_tokens(found) and copy.is_stopped())
        return [self._tokenizer.eos_token] if ends else []

    @property
    def _tokenizer(self) -> Any:
        return self._processor.llg_tokenizer


class _OutlinesCore(_Matched):
    """Forced tokens by outlines-core's index, which has the allowed tokens of each state.

    If a text is forced, the allowed tokens are its prefixes, and each next state is reachable from
    that of a shorter prefix. The longest prefix is drafted.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._steps: dict[int, dict[int, int]] = {}  # by state: the next states by token
        self._furthest: dict[int, int | None] = {}  # by state: the forced token, if there is one

    def __call__(self, context: Sequence[int], max_tokens: int) -> list[int]:
        guide, found = self._matcher(), list[int]()
        if guide is None or not context:
            return found
        state = self._processor.index.get_next_state(guide.get_state(), context[-1])
        while state is not None and len(found) < max_tokens:
            if state not in self._furthest:
                self._furthest[state] = self._forced(state)
            token = self._furthest[state]
            if token is None:
                break
            found.append(token)
            after = self._next(state)[token]
            state = None if after == state else after  # the end of the sequence leads nowhere
        return found

    def _next(self, state: int) -> dict[int, int]:
        """The next states by token; empty where there are many tokens."""
        if state not in self._steps:
            index = self._processor.index
            tokens = index.get_allowed_tokens(state) or ()
            few = tokens if len(tokens) <= MAX_ALLOWED else ()
            after = ((token, index.get_next_state(state, token)) for token in few)
            self._steps[state] = {token: state if to is None else to for token, to in after}
        return self._steps[state]

    def _forced(self, state: int) -> int | None:
        """The longest forced token; None if there is a choice."""
        steps = self._next(state)
        reached = {*steps.values()}
        last = [after for after in reached if after == state or not self._leads_to(after, reached)]
        found = [token for token, after in steps.items() if after in last]
        return found[0] if len(last) == len(found) == 1 else None

    def _leads_to(self, state: int, others: set[int]) -> bool:
        return any(after != state and after in others for after in self._next(state).values())


# Attribute that holds the rows' matchers, and what reads them, by the processor's module and class.
# All make the matchers in their first call. Each later call first accepts the last committed token.
MATCHERS: dict[tuple[str, str], tuple[str, type[_Matched]]] = {
    ("xgrammar.contrib.hf", "LogitsProcessor"): ("matchers", _XGrammar),
    ("outlines.backends.xgrammar", "XGrammarLogitsProcessor"): ("_matchers", _XGrammar),
    ("outlines.backends.llguidance", "LLGuidanceLogitsProcessor"): ("ll_matchers", _LLGuidance),
    ("outlines.backends.outlines_core", "OutlinesCoreLogitsProcessor"): ("_guides", _OutlinesCore),
}
