"""Copying what followed earlier occurrences of the end of the text, with a suffix automaton.

Invariant: the automaton is that of the committed tokens (automaton.pyx). Costs: a token O(1)
amortised, a drafted token O(1), ``copies`` O(most) occurrences. Memory: on natural text about 55
bytes per token. One thread at a time: a second one gets a RuntimeError.
"""

from libc.stdint cimport int32_t

import numpy as np

from ngramspec._native.automaton cimport (
    Automaton, automaton_append, automaton_check, automaton_follow, automaton_free, automaton_init,
    automaton_longest_probe, automaton_occurrence, automaton_sizeof, first_of, length_of, state_of,
)
from ngramspec._native.common cimport NONE, TokenStructure, gamma_of, start_of, token_view


cdef class CopyIndex(TokenStructure):
    """Finds earlier occurrences of the end of the text."""

    cdef Automaton automaton

    def __cinit__(self):
        self.name = "copy index"
        if automaton_init(&self.automaton) < 0:
            raise MemoryError("copy index")

    def __dealloc__(self):
        automaton_free(&self.automaton)

    def __len__(self):
        """Tokens in the text."""
        return self.automaton.n

    def draft(self, Py_ssize_t gamma, prefix=None, int min_match=1):
        """Copy ``gamma`` tokens that follow the best occurrence of the longest match.

        The best occurrence is the most recent recorded one that is followed by ``gamma`` tokens,
        otherwise the one followed by the most tokens. A copy that reaches the end of the text
        continues with the tokens it has drafted itself.

        Args:
            gamma: number of tokens, 0..65536.
            prefix: int32 array that is taken to follow the text (a draft begun elsewhere).
            min_match: shortest match to draft from, >= 1.

        Returns:
            (tokens int32 (gamma,), matched): ``matched`` is the match's length in tokens. Both
            are empty, (0,) and 0, when no suffix of min_match tokens occurred before.
        """
        cdef Automaton* a = &self.automaton
        cdef const int32_t[::1] view
        cdef const int32_t* start = NULL
        cdef Py_ssize_t n = 0, i, at
        cdef int32_t s, end, matched = 0
        cdef int wanted = gamma_of(gamma)
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        if prefix is not None and len(prefix):
            view = token_view(prefix, "prefix")
            start, n = start_of(view), view.shape[0]
        tokens = np.empty(wanted, np.int32)
        cdef int32_t[::1] out = tokens
        self.idle()  # no other thread can run in the rest of this function
        s = automaton_follow(a, a.prefixes[a.n].link, start, n, &matched)
        end = NONE if matched < min_match else automaton_occurrence(a, s, wanted)
        if end == NONE:
            return tokens[:0], 0
        for i in range(wanted):
            at = end + i
            if at < a.n:
                out[i] = a.text[at]
            elif at < a.n + n:
                out[i] = start[at - a.n]
            else:
                out[i] = out[at - a.n - n]
        return tokens, matched

    def copies(self, Py_ssize_t gamma, int most, int min_match=1):
        """Copy ``gamma`` tokens that follow each of at most ``most`` recorded occurrences.

        Occurrences of the longest match come first, then those of its longest suffix that occurred
        elsewhere, and so on; the most recent of each first. As in ``draft``, a copy that reaches
        the end of the text continues with its own tokens.

        Returns:
            a list of int32 (gamma,), empty when no suffix of min_match tokens occurred before.
        """
        cdef Automaton* a = &self.automaton
        cdef int32_t s, end, matched = 0
        cdef Py_ssize_t i, wanted = gamma_of(gamma)
        cdef int32_t[::1] out
        if most < 1:
            raise ValueError(f"most must be >= 1, got {most}")
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        self.enter()  # making arrays may run the garbage collector, and so another thread
        try:
            ends: list[int] = []
            found: list[np.ndarray] = []
            s = automaton_follow(a, a.prefixes[a.n].link, NULL, 0, &matched)
            while s != 0 and length_of(a, s) >= min_match and len(ends) < most:
                for end in (state_of(a, s).recent, state_of(a, s).prior, first_of(a, s)):
                    if end < a.n and end not in ends:
                        ends.append(end)
                s = state_of(a, s).link
            for end in ends[:most]:
                tokens = np.empty(wanted, np.int32)
                out = tokens
                for i in range(wanted):
                    out[i] = a.text[end + i] if end + i < a.n else out[end + i - a.n]
                found.append(tokens)
            return found
        finally:
            self.busy = False

    def longest_match(self):
        """(length, end): the longest suffix that occurred before and one end of it; or (0, 0)."""
        cdef Automaton* a = &self.automaton
        cdef int32_t s
        self.idle()
        s = a.prefixes[a.n].link
        if s == NONE or s == 0:
            return 0, 0
        return length_of(a, s), automaton_occurrence(a, s, 1)

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(CopyIndex) + automaton_sizeof(&self.automaton)

    def longest_probe(self):
        """Largest number of index places inspected to find an edge; 1 without collisions. O(n)."""
        self.idle()
        return automaton_longest_probe(&self.automaton)

    def check_integrity(self):
        """Walk every state and edge; raise an AssertionError if an invariant is broken."""
        self.idle()
        automaton_check(&self.automaton)

    cdef int append(self, int32_t token) noexcept nogil:
        return automaton_append(&self.automaton, token)
