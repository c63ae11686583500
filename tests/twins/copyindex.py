"""Twin of the copy index: a suffix automaton, and the proof of its longest match."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tests.twins.common import Tokens, ints

ANCESTORS = 8  # how many of the longest matching suffixes a new token refreshes


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
    text = ints(tokens)
    whole = text + ints(prefix)

    def match(end: int) -> int:
        length = 0
        while length < end and text[end - 1 - length] == whole[-1 - length]:
            length += 1
        return length

    matches = [match(end) for end in range(len(text))]
    longest = max(matches, default=0)
    return longest, [end for end, length in enumerate(matches) if length == longest > 0]


@dataclasses.dataclass(eq=False)
class State:
    """The strings that end at the same places of the text; an end is a count of tokens."""

    length: int  # of the longest string
    first: int  # end of its first occurrence
    recent: int  # end of its most recent occurrence noted, ...
    prior: int  # ... and of the one noted before
    link: State | None = None  # the longest suffix that ends elsewhere too; None: the root
    after: dict[int, State] = dataclasses.field(default_factory=dict)  # one token longer


class CopyIndex:
    """Where the end of the text occurred before: a suffix automaton (Blumer et al. 1985).

    The match's length is exact (``longest_repeated_suffix`` is the proof in the tests). Which
    occurrence is copied depends on what the states remember, and here they remember what the
    native index's do: the first end, and two recent ones, noted in the ``ANCESTORS`` longest
    suffixes that a new token matches. A token costs O(1) amortised.
    """

    def __init__(self) -> None:
        self._text: list[int] = []
        self._root = self._newest = State(length=0, first=0, recent=0, prior=0)

    def __len__(self) -> int:
        return len(self._text)

    def extend(self, tokens: Tokens) -> None:
        for token in ints(tokens):
            self._append(token)

    def draft(
        self, gamma: int, prefix: Tokens | None = None, min_match: int = 1
    ) -> tuple[npt.NDArray[np.int32], int]:
        """Copy ``gamma`` tokens from after the best occurrence of the longest match.

        Best is the most recent end noted with ``gamma`` tokens after it, else the first one. A
        copy that reaches the end of the text goes on with the prefix and what it has drafted.
        """
        state, matched = self._follow(ints(prefix))
        if matched < min_match:
            return np.empty(0, np.int32), 0
        end = self._occurrence(state, gamma)
        whole = self._text + ints(prefix)
        start = len(whole)
        for i in range(gamma):
            whole.append(whole[end + i])
        return np.array(whole[start:], np.int32), matched

    def copies(self, gamma: int, most: int, min_match: int = 1) -> list[npt.NDArray[np.int32]]:
        """Copies of ``gamma`` tokens from after at most ``most`` occurrences that are known.

        Longest match first, then its suffixes that occurred elsewhere; of equals the most recent.
        """
        state: State | None = self._follow([])[0]
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

    def check_integrity(self) -> None:
        """The automaton's longest match is the true one."""
        state, length = self._follow([])
        true_length, ends = longest_repeated_suffix(self._text)
        assert length == true_length
        assert not length or self._occurrence(state, 1) in ends

    def _append(self, token: int) -> None:
        self._text.append(token)
        end = len(self._text)
        newest = State(length=end, first=end, recent=end, prior=end, link=self._root)
        state: State | None = self._newest
        while state is not None and token not in state.after:  # strings that never had it after
            state.after[token] = newest
            state = state.link
        if state is not None:
            newest.link = self._longest(state, token)
        self._newest = newest
        self._note(end)

    def _longest(self, state: State, token: int) -> State:
        """The state whose longest string is that of ``state`` and ``token``; split off if need be.

        ``state.after[token]`` may also have longer strings, which do not end here: those keep the
        old state, the others get one with a copy of all it knew.
        """
        longer = state.after[token]
        if longer.length == state.length + 1:
            return longer
        split = dataclasses.replace(longer, length=state.length + 1, after=dict(longer.after))
        longer.link = split
        source: State | None = state
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

    def _follow(self, prefix: list[int]) -> tuple[State, int]:
        """The state of the longest suffix of text + prefix that text goes on after; its length."""
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

    def _occurrence(self, state: State, wanted: int) -> int:
        """The end to copy ``wanted`` tokens from, see draft."""
        for end in (state.recent, state.prior):
            if end + wanted <= len(self._text):
                return end
        return state.first
