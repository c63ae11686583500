"""Plain-Python twins of the native structures: what they compute, without how they do it fast.

Each class has its native counterpart's public methods, arguments and results, and takes any
sequence of ints for tokens. They are the oracle of the tests and readable documentation; nothing
at run time uses them. One thread at a time.
"""

from __future__ import annotations

import dataclasses
import itertools
import operator
import struct
import sys
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from ngramspec._native.common import MOST_DRAFTED, salt

Tokens = Sequence[int] | npt.NDArray[np.int32]
Context = tuple[int, ...]

ANCESTORS = 8  # how many of the longest matching suffixes a new token refreshes


def _ints(tokens: Tokens | None) -> list[int]:
    return [] if tokens is None else [operator.index(token) for token in tokens]


def _committed(tokens: Tokens) -> list[int]:
    ids = _ints(tokens)
    for index, token in enumerate(ids):
        if token < 0:
            raise ValueError(f"token ids must be >= 0, got {token} at index {index}")
    return ids


def _check_gamma(gamma: int) -> None:
    if gamma < 0:
        raise ValueError(f"gamma must be >= 0, got {gamma}")
    if gamma > MOST_DRAFTED:
        raise ValueError(f"gamma must be <= {MOST_DRAFTED}, got {gamma}")


def context_key(context: Context, salt: int) -> int:
    """A context's key: XXH64 of its little-endian uint32 tokens, seeded with the n-gram's order.

    Tokens and seed are XORed with the salt's eight bytes first, so that nobody without it can tell
    which contexts meet in a hash table.
    """
    data = struct.pack(f"<{len(context)}I", *context)
    pad = itertools.cycle(salt.to_bytes(8, "little"))
    salted = bytes(a ^ b for a, b in zip(data, pad, strict=False))
    return xxhash.xxh64_intdigest(salted, seed=(len(context) + 1) ^ salt)


def longest_repeated_suffix(tokens: Tokens, prefix: Tokens = ()) -> tuple[int, list[int]]:
    """The longest suffix of tokens + prefix that also ends inside ``tokens``, by trying every end.

    Costs O(len(tokens) * length). ``tokens[end]`` follows an occurrence, so an end lies before
    the end of ``tokens``; the occurrence may overlap the suffix.

    Returns:
        (length in tokens, every such end in rising order); (0, []) when there is none.

    Example:
        >>> longest_repeated_suffix([7, 8, 9, 7, 8, 5, 7, 8])
        (2, [2, 5])
    """
    text = _ints(tokens)
    whole = text + _ints(prefix)

    def match(end: int) -> int:
        length = 0
        while length < end and text[end - 1 - length] == whole[-1 - length]:
            length += 1
        return length

    matches = [match(end) for end in range(len(text))]
    longest = max(matches, default=0)
    return longest, [end for end, length in enumerate(matches) if length == longest > 0]


class _Twin:
    def sizeof(self) -> int:
        """Bytes of the containers, what they hold left out: not comparable with the native one."""
        return sum(sys.getsizeof(value) for value in vars(self).values())

    def longest_probe(self) -> int:
        """1: Python's own dicts, whose probing is no affair of the twin's."""
        return 1

    def check_integrity(self) -> None:
        """Nothing to check: the counts are plain."""


class NGramTable(_Twin):
    """Counts of what followed each context of 1..order-1 tokens in the window.

    Every ``extend`` counts the whole window anew: O(window * order), where the native table needs
    O(order) per token. A draft costs O(window + gamma * continuations).

    Equal counts rank by their last occurrence, newest first, always. The native table guarantees
    that without a window; with one, a continuation that lost a count is placed exactly only among
    64 newer equals (``TIES`` in ranks.pyx), so that with more equals their order may differ.

    Args:
        order: the longest n-gram, 2..8; contexts have one token less.
        window: count only the last ``window`` tokens (>= order), or None for all.
    """

    def __init__(self, order: int = 4, window: int | None = None) -> None:
        if not 2 <= order <= 8:
            raise ValueError(f"order must be in 2..8, got {order}")
        if window is not None and window < order:
            raise ValueError(f"window must be >= {order} (the order), got {window}")
        self.salt = salt()
        self.order = order
        self.window = window
        self._tokens: list[int] = []  # those in the window
        self._after: dict[Context, dict[int, tuple[int, int]]] = {}  # token -> count, last position

    def __len__(self) -> int:
        """Tokens now counted: all, or at most the window's."""
        return len(self._tokens)

    def extend(self, tokens: Tokens) -> None:
        """Count committed tokens (ids >= 0) and forget those that leave the window."""
        self._tokens += _committed(tokens)
        if self.window is not None:
            del self._tokens[: -self.window]
        self._after = {}
        for position, token in enumerate(self._tokens):
            for start in range(max(0, position - self.order + 1), position):
                context = tuple(self._tokens[start:position])
                followers = self._after.setdefault(context, {})
                count, _ = followers.get(token, (0, 0))
                followers[token] = count + 1, position

    def draft(
        self, gamma: int, prefix: Tokens | None = None
    ) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int8]]:
        """Chain at most ``gamma`` most frequent continuations, each fed back as context.

        At each step the longest context ever seen predicts (backoff), with its best continuation.

        Returns:
            (tokens int32, orders int8), both (n,), n <= gamma: orders[i] is the n-gram order that
            predicted tokens[i]. Empty where even the last token alone is unknown.
        """
        _check_gamma(gamma)
        text = self._tokens + _ints(prefix)
        tokens: list[int] = []
        orders: list[int] = []
        for _ in range(gamma):
            suffixes = (tuple(text[-n:]) for n in range(min(self.order - 1, len(text)), 0, -1))
            context = next((suffix for suffix in suffixes if suffix in self._after), None)
            if context is None:
                break
            token = self._ranked(context)[0][0]
            text.append(token)
            tokens.append(token)
            orders.append(len(context) + 1)
        return np.array(tokens, np.int32), np.array(orders, np.int8)

    def best(self, context: Tokens) -> tuple[int, int] | None:
        """(token, count) of a context's most frequent continuation, ties to the more recent."""
        found = self.top_k(context, 1)
        return found[0] if found else None

    def top_k(self, context: Tokens, k: int) -> list[tuple[int, int]]:
        """The ``k`` most frequent continuations as (token, count), in count order, newer first."""
        if k < 1:
            raise ValueError(f"k must be >= 1, got {k}")
        return self._ranked(self._context(context))[:k]

    def count(self, context: Tokens, token: int) -> int:
        """How often ``token`` followed ``context``."""
        return self._after.get(self._context(context), {}).get(token, (0, 0))[0]

    def total(self, context: Tokens) -> int:
        """How often anything followed ``context``."""
        return sum(count for count, _ in self._after.get(self._context(context), {}).values())

    def contexts(self) -> npt.NDArray[np.uint64]:
        """Every known context's key, as uint64 (n,), in no order."""
        return np.array([context_key(context, self.salt) for context in self._after], np.uint64)

    def _ranked(self, context: Context) -> list[tuple[int, int]]:
        followers = self._after.get(context, {})
        ranked = sorted(followers, key=followers.__getitem__, reverse=True)
        return [(token, followers[token][0]) for token in ranked]

    def _context(self, context: Tokens) -> Context:
        if not 1 <= len(context) < self.order:
            raise ValueError(f"context must have 1..{self.order - 1} tokens, got {len(context)}")
        return tuple(_ints(context))


@dataclasses.dataclass(eq=False)
class DecodeLoop:
    """The strings that end at the same places of the text; an end is a count of tokens."""

    length: int  # of the longest string
    first: int  # end of its first occurrence
    recent: int  # end of its most recent occurrence noted, ...
    prior: int  # ... and of the one noted before
    link: DecodeLoop | None = None  # the longest suffix that ends elsewhere too; None: the root
    after: dict[int, DecodeLoop] = dataclasses.field(default_factory=dict)  # one token longer


class CopyIndex(_Twin):
    """Where the end of the text occurred before: a suffix automaton (Blumer et al. 1985).

    The match's length is exact (``longest_repeated_suffix`` is the proof in the tests). Which
    occurrence is copied depends on what the states remember, and here they remember what the
    native index's do: the first end, and two recent ones, noted in the ``ANCESTORS`` longest
    suffixes that a new token matches. A token costs O(1) amortised.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._root = self._newest = DecodeLoop(length=0, first=0, recent=0, prior=0)

    def __len__(self) -> int:
        """Tokens in the text."""
        return len(self._text)

    def extend(self, tokens: Tokens) -> None:
        """Append committed tokens (ids >= 0)."""
        for token in _committed(tokens):
            self._append(token)

    def draft(
        self, gamma: int, prefix: Tokens | None = None, min_match: int = 1
    ) -> tuple[npt.NDArray[np.int32], int]:
        """Copy ``gamma`` tokens from behind the best occurrence of the longest match.

        Best is the most recent end noted with ``gamma`` tokens behind it, else the first one. A
        copy that reaches the end of the text goes on with the prefix and what it has drafted.

        Returns:
            (tokens int32 (gamma,), matched): ``matched`` is the match's length in tokens. Both
            are empty, (0,) and 0, when no suffix of min_match tokens occurred before.
        """
        _check_gamma(gamma)
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        state, matched = self._follow(_ints(prefix))
        if matched < min_match:
            return np.empty(0, np.int32), 0
        end = self._occurrence(state, gamma)
        whole = self._text + _ints(prefix)
        start = len(whole)
        for i in range(gamma):
            whole.append(whole[end + i])
        return np.array(whole[start:], np.int32), matched

    def copies(self, gamma: int, most: int, min_match: int = 1) -> list[npt.NDArray[np.int32]]:
        """Copies of ``gamma`` tokens from behind at most ``most`` occurrences that are known.

        Longest match first, then its suffixes that occurred elsewhere; of equals the most recent.
        """
        _check_gamma(gamma)
        if most < 1:
            raise ValueError(f"most must be >= 1, got {most}")
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        state: DecodeLoop | None = self._follow([])[0]
        ends: list[int] = []
        while state is not None and state.link is not None and state.length >= min_match:
            known = (state.recent, state.prior, state.first)
            ends += [end for end in known if end < len(self._text)]
            state = state.link
        found = []
        for end in list(dict.fromkeys(ends))[:most]:
            whole = list(self._text)
            for i in range(gamma):
                whole.append(whole[end + i])
            found.append(np.array(whole[len(self._text) :], np.int32))
        return found

    def longest_match(self) -> tuple[int, int]:
        """(length, end): the longest suffix that occurred before and an end of it; or (0, 0)."""
        state, matched = self._follow([])
        return (matched, self._occurrence(state, 1)) if matched else (0, 0)

    def check_integrity(self) -> None:
        """The automaton's longest match is the true one."""
        length, end = self.longest_match()
        true_length, ends = longest_repeated_suffix(self._text)
        assert length == true_length
        assert end in (ends or [0])

    def _append(self, token: int) -> None:
        self._text.append(token)
        end = len(self._text)
        newest = DecodeLoop(length=end, first=end, recent=end, prior=end, link=self._root)
        state: DecodeLoop | None = self._newest
        while state is not None and token not in state.after:  # strings that never had it behind
            state.after[token] = newest
            state = state.link
        if state is not None:
            newest.link = self._longest(state, token)
        self._newest = newest
        self._note(end)

    def _longest(self, state: DecodeLoop, token: int) -> DecodeLoop:
        """The state whose longest string is that of ``state`` and ``token``; split off if need be.

        ``state.after[token]`` may also have longer strings, which do not end here: those keep the
        old state, the others get one with a copy of all it knew.
        """
        longer = state.after[token]
        if longer.length == state.length + 1:
            return longer
        split = dataclasses.replace(longer, length=state.length + 1, after=dict(longer.after))
        longer.link = split
        source: DecodeLoop | None = state
        while source is not None and source.after.get(token) is longer:
            source.after[token] = split
            source = source.link
        return split

    def _note(self, end: int) -> None:
        state = self._newest.link
        for _ in range(ANCESTORS):
            if state is None or state is self._root:
                break
            state.prior, state.recent = state.recent, end
            state = state.link

    def _follow(self, prefix: list[int]) -> tuple[DecodeLoop, int]:
        """The state of the longest suffix of text + prefix that text goes on behind; its length."""
        state = self._newest.link or self._root
        matched = state.length
        for token in prefix:
            while token not in state.after and state.link is not None:
                state = state.link
                matched = state.length
            if token in state.after:
                state = state.after[token]
                matched += 1
        while state.link is not None and state.first == len(self._text):  # only at the very end
            state = state.link
            matched = state.length
        return state, matched

    def _occurrence(self, state: DecodeLoop, wanted: int) -> int:
        """The end to copy ``wanted`` tokens from, see draft."""
        for end in (state.recent, state.prior):
            if end + wanted <= len(self._text):
                return end
        return state.first


class UnigramCounts(_Twin):
    """How often each token occurred, and which one most."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int]] = {}  # token -> count, last position
        self._n = 0

    def __len__(self) -> int:
        """Tokens counted."""
        return self._n

    def extend(self, tokens: Tokens) -> None:
        """Count committed tokens (ids >= 0)."""
        for token in _committed(tokens):
            self._seen[token] = self.count(token) + 1, self._n
            self._n += 1

    def best(self) -> tuple[int, int] | None:
        """(token, count) of the most frequent token, ties to the more recent; None when empty."""
        if not self._seen:
            return None
        token = max(self._seen, key=self._seen.__getitem__)
        return token, self.count(token)

    @property
    def share(self) -> float:
        """The most frequent token's part of all tokens, 0.0 when empty."""
        best = self.best()
        return best[1] / self._n if best else 0.0

    def count(self, token: int) -> int:
        """How often ``token`` occurred."""
        return self._seen.get(token, (0, 0))[0]
