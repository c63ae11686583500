"""The longest suffix of the committed tokens that occurred before, and where: a suffix automaton.

Built online after Blumer et al. 1985: the link of the newest prefix state is the longest suffix
that occurred before, of any length, exactly. Each state also knows the end of its first occurrence
and of two recent ones; a new token refreshes the ``ANCESTORS`` longest of the suffixes it matches,
so that "recent" is exact there and never later than the truth for shorter ones.

Invariant: text[end] is the token that followed an occurrence of the state's strings, for each of
its ends below the text's length. Costs: a token O(1) amortised (a single one can cost as much as
the longest match when that match breaks), a drafted token O(1). Memory: at most 2 states and 3
edges per token, on natural text about 55 bytes per token. One thread at a time.
"""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

import numpy as np

from ngramspec._native.common cimport (
    MAX_TOKENS, NONE, first_negative, gamma_of, process_salt, raise_negative, reserve, start_of,
    token_view,
)
from ngramspec._native.xxh64 cimport scatter

cdef enum:
    CLONE = 1 << 30
    ANCESTORS = 8


cdef class CopyIndex:
    """Where the end of the text occurred before."""

    def __cinit__(self):
        self.salt = process_salt()
        self.index_cap = 64
        self.index = <int32_t*>calloc(64, sizeof(int32_t))
        self.prefixes = <State*>malloc(16 * sizeof(State))
        if self.index == NULL or self.prefixes == NULL:
            raise MemoryError("copy index")
        self.prefix_cap = 16
        self.prefixes[0].link = NONE
        self.prefixes[0].edges = NONE
        self.prefixes[0].recent = self.prefixes[0].prior = 0

    def __dealloc__(self):
        free(self.text)
        free(self.prefixes)
        free(self.clones)
        free(self.edges)
        free(self.index)

    def __len__(self):
        """Tokens in the text."""
        return self.n

    def extend(self, tokens):
        """Append committed tokens (int32 array, ids >= 0).

        Raises:
            TypeError, ValueError: not an int32 array, or a negative id; nothing was appended.
            MemoryError: the tokens before the failure are in, the index stays valid.
        """
        cdef const int32_t[::1] view = token_view(tokens)
        cdef Py_ssize_t i, bad, count = view.shape[0]
        cdef int failed = 0
        if count == 0:
            return
        if count > MAX_TOKENS - 1 - self.n:
            raise OverflowError(f"a copy index holds at most {MAX_TOKENS - 1} tokens")
        self.idle()
        self.busy = True
        with nogil:
            bad = first_negative(&view[0], count)
            if bad == NONE:
                for i in range(count):
                    failed = self.append(view[i])
                    if failed:
                        break
        self.busy = False
        if bad != NONE:
            raise_negative(view[bad], bad)
        if failed:
            raise MemoryError(f"copy index at {self.n} tokens")

    def draft(self, Py_ssize_t gamma, prefix=None, int min_match=1):
        """Copy ``gamma`` tokens from behind the best occurrence of the longest match.

        The best occurrence is the most recent one known that has ``gamma`` tokens behind it, else
        the one with most behind it; a copy that reaches the end of the text goes on with what it
        has itself drafted.

        Args:
            gamma: tokens wanted, 0..65536.
            prefix: int32 array taken to follow the text (a draft begun elsewhere).
            min_match: shortest match to draft from, >= 1.

        Returns:
            (tokens int32 (gamma,), matched): ``matched`` is the match's length in tokens. Both
            are empty, (0,) and 0, when no suffix of min_match tokens occurred before.
        """
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
        self.idle()  # nothing below lets another thread in
        s = self.follow(self.prefixes[self.n].link, start, n, &matched)
        end = NONE if matched < min_match else self.occurrence(s, wanted)
        if end == NONE:
            return tokens[:0], 0
        for i in range(wanted):
            at = end + i
            if at < self.n:
                out[i] = self.text[at]
            elif at < self.n + n:
                out[i] = start[at - self.n]
            else:
                out[i] = out[at - self.n - n]
        return tokens, matched

    def copies(self, Py_ssize_t gamma, int most, int min_match=1):
        """Copies of ``gamma`` tokens from behind at most ``most`` occurrences that are known.

        Those of the longest match come first, then those of its longest suffix that occurred
        elsewhere, and so on; of equals the most recent. Like ``draft``, a copy that reaches the end
        of the text goes on with itself.

        Returns:
            A list of int32 (gamma,), empty when no suffix of min_match tokens occurred before.
        """
        cdef int32_t s, end, matched = 0
        cdef Py_ssize_t i, wanted = gamma_of(gamma)
        cdef int32_t[::1] out
        if most < 1:
            raise ValueError(f"most must be >= 1, got {most}")
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        self.idle()
        self.busy = True  # making arrays may collect garbage, and so let another thread run
        try:
            ends: list[int] = []
            found: list[np.ndarray] = []
            s = self.follow(self.prefixes[self.n].link, NULL, 0, &matched)
            while s != 0 and self.length(s) >= min_match and len(ends) < most:
                for end in (self.state(s).recent, self.state(s).prior, self.first(s)):
                    if end < self.n and end not in ends:
                        ends.append(end)
                s = self.state(s).link
            for end in ends[:most]:
                tokens = np.empty(wanted, np.int32)
                out = tokens
                for i in range(wanted):
                    out[i] = self.text[end + i] if end + i < self.n else out[end + i - self.n]
                found.append(tokens)
            return found
        finally:
            self.busy = False

    def longest_match(self):
        """(length, end): the longest suffix that occurred before and an end of it; or (0, 0)."""
        cdef int32_t s
        self.idle()
        s = self.prefixes[self.n].link
        if s == NONE or s == 0:
            return 0, 0
        return self.length(s), self.occurrence(s, 1)

    def sizeof(self):
        """Bytes allocated."""
        return (
            sizeof(CopyIndex)
            + self.text_cap * sizeof(int32_t)
            + self.prefix_cap * sizeof(State)
            + self.clone_cap * sizeof(Clone)
            + self.edge_cap * sizeof(Edge)
            + self.index_cap * sizeof(int32_t)
        )

    def longest_probe(self):
        """Most places of the index that finding an edge looks at, 1 where none collide. O(n)."""
        cdef Py_ssize_t i, longest = 0
        cdef Edge* edge
        self.idle()
        for i in range(self.index_cap):
            if self.index[i] != 0:
                edge = &self.edges[self.index[i] - 1]
                home = self.home(edge.source, edge.token)
                longest = max(longest, ((i - home) & (self.index_cap - 1)) + 1)
        return longest

    def check_integrity(self):
        """Walk every state and edge; raise an AssertionError if an invariant is broken."""
        cdef int32_t s, e, k
        cdef Py_ssize_t seen = 0
        self.idle()
        states = [*range(self.n + 1), *(CLONE + k for k in range(self.clone_n))]
        for s in states:
            if s != 0:
                assert self.length(self.state(s).link) < self.length(s), "a link is not shorter"
            for k in (self.first(s), self.state(s).prior, self.state(s).recent):
                assert self.length(s) <= k <= self.n and self.first(s) <= k
                for e in range(1, min(self.length(s), 32) + 1):
                    assert self.text[k - e] == self.text[self.first(s) - e], "not an occurrence"
            e = self.state(s).edges
            while e != NONE:
                seen += 1
                assert self.edges[e].source == s and self.find_edge(s, self.edges[e].token) == e
                assert self.length(self.edges[e].target) > self.length(s)
                assert self.text[self.first(self.edges[e].target) - 1] == self.edges[e].token
                e = self.edges[e].next
        assert seen == self.edge_n and 4 * self.edge_n <= 3 * self.index_cap

    cdef int idle(self) except -1:
        if self.busy:
            raise RuntimeError("this copy index is being used by another thread")
        return 0

    cdef inline State* state(self, int32_t s) noexcept nogil:
        return &self.clones[s - CLONE].state if s >= CLONE else &self.prefixes[s]

    cdef inline int32_t length(self, int32_t s) noexcept nogil:
        return self.clones[s - CLONE].length if s >= CLONE else s

    cdef inline int32_t first(self, int32_t s) noexcept nogil:
        return self.clones[s - CLONE].first if s >= CLONE else s

    cdef inline Py_ssize_t home(self, int32_t source, int32_t token) noexcept nogil:
        cdef uint64_t edge = <uint64_t>source << 32 | <uint64_t>token
        return <Py_ssize_t>(scatter(edge ^ self.salt) & <uint64_t>(self.index_cap - 1))

    cdef int32_t find_edge(self, int32_t source, int32_t token) noexcept nogil:
        cdef Py_ssize_t i = self.home(source, token)
        cdef Edge* edge
        while self.index[i] != 0:
            edge = &self.edges[self.index[i] - 1]
            if edge.source == source and edge.token == token:
                return self.index[i] - 1
            i = (i + 1) & (self.index_cap - 1)
        return NONE

    cdef int32_t step(self, int32_t source, int32_t token) noexcept nogil:
        """The state after ``token``, or NONE."""
        cdef int32_t e
        if source < self.n and self.text[source] == token:
            return source + 1
        e = self.find_edge(source, token)
        return NONE if e == NONE else self.edges[e].target

    cdef int add_edge(self, int32_t source, int32_t token, int32_t target) noexcept nogil:
        """A new transition: 0, or -1 with nothing changed."""
        cdef Py_ssize_t i, e, cap = 2 * self.index_cap
        cdef int32_t* grown
        if reserve(<void**>&self.edges, &self.edge_cap, self.edge_n + 1, sizeof(Edge)) < 0:
            return -1
        if 4 * (self.edge_n + 1) > 3 * self.index_cap:
            grown = <int32_t*>calloc(<size_t>cap, sizeof(int32_t))
            if grown == NULL:
                return -1
            free(self.index)
            self.index = grown
            self.index_cap = cap
            for e in range(self.edge_n):
                i = self.home(self.edges[e].source, self.edges[e].token)
                while grown[i] != 0:
                    i = (i + 1) & (cap - 1)
                grown[i] = <int32_t>e + 1
        i = self.home(source, token)
        while self.index[i] != 0:
            i = (i + 1) & (self.index_cap - 1)
        self.index[i] = <int32_t>self.edge_n + 1
        self.edges[self.edge_n].source = source
        self.edges[self.edge_n].token = token
        self.edges[self.edge_n].target = target
        self.edges[self.edge_n].next = self.state(source).edges
        self.state(source).edges = <int32_t>self.edge_n
        self.edge_n += 1
        return 0

    cdef int undo(self, Py_ssize_t mark) noexcept nogil:
        """Take the newest token and the edges from ``mark`` on back; always -1.

        Newest first, so an edge's place in the index can simply be emptied.
        """
        cdef Py_ssize_t i
        while self.edge_n > mark:
            self.edge_n -= 1
            i = self.home(self.edges[self.edge_n].source, self.edges[self.edge_n].token)
            while self.index[i] != self.edge_n + 1:
                i = (i + 1) & (self.index_cap - 1)
            self.index[i] = 0
            self.state(self.edges[self.edge_n].source).edges = self.edges[self.edge_n].next
        self.n -= 1
        return -1

    cdef int append(self, int32_t token) noexcept nogil:
        """Add one token to the text: 0, or -1 with nothing changed."""
        cdef Py_ssize_t mark = self.edge_n
        cdef int32_t now = <int32_t>self.n + 1
        cdef int32_t p, q = NONE
        if reserve(<void**>&self.text, &self.text_cap, now, sizeof(int32_t)) < 0:
            return -1
        if reserve(<void**>&self.prefixes, &self.prefix_cap, now + 1, sizeof(State)) < 0:
            return -1
        self.text[self.n] = token  # with n, the implicit edge from the previous prefix
        self.n += 1
        self.prefixes[now].link = 0
        self.prefixes[now].edges = NONE
        self.prefixes[now].recent = self.prefixes[now].prior = now
        p = self.prefixes[now - 1].link
        while p != NONE:
            q = self.step(p, token)
            if q != NONE:
                break
            if self.add_edge(p, token, now) < 0:
                return self.undo(mark)
            p = self.state(p).link
        if p != NONE:
            if self.length(q) != self.length(p) + 1:
                q = self.split(p, q, token)
                if q == NONE:
                    return self.undo(mark)
            self.prefixes[now].link = q
        self.visit()
        return 0

    cdef int32_t split(self, int32_t p, int32_t q, int32_t token) noexcept nogil:
        """Give the strings of ``q`` up to length(p) + 1 a state of their own: it, or NONE."""
        cdef int32_t c = CLONE + <int32_t>self.clone_n
        cdef int32_t e
        if reserve(<void**>&self.clones, &self.clone_cap, self.clone_n + 1, sizeof(Clone)) < 0:
            return NONE
        self.clones[self.clone_n].state = self.state(q)[0]
        self.clones[self.clone_n].state.edges = NONE
        self.clones[self.clone_n].length = self.length(p) + 1
        self.clones[self.clone_n].first = self.first(q)
        self.clone_n += 1
        e = self.state(q).edges
        while e != NONE:
            if self.add_edge(c, self.edges[e].token, self.edges[e].target) < 0:
                self.clone_n -= 1
                return NONE
            e = self.edges[e].next
        if q < self.n and self.add_edge(c, self.text[q], q + 1) < 0:
            self.clone_n -= 1
            return NONE
        self.state(q).link = c
        while p != NONE and self.step(p, token) == q:
            # never an implicit edge: those lead to a string just one token longer
            self.edges[self.find_edge(p, token)].target = c
            p = self.state(p).link
        return c

    cdef void visit(self) noexcept nogil:
        """Note the newest position in the longest of the states that end there."""
        cdef int32_t s = self.prefixes[self.n].link
        cdef int _k
        for _k in range(ANCESTORS):
            if s == NONE or s == 0:
                break
            self.state(s).prior = self.state(s).recent
            self.state(s).recent = <int32_t>self.n
            s = self.state(s).link

    cdef int32_t follow(
        self, int32_t s, const int32_t* tokens, Py_ssize_t n, int32_t* matched
    ) noexcept nogil:
        """The state of the longest suffix of text + tokens that is in the text, and its length."""
        cdef int32_t to
        cdef Py_ssize_t i
        if s == NONE:
            s = 0
        matched[0] = self.length(s)
        for i in range(n):
            to = self.step(s, tokens[i])
            while to == NONE and s != 0:
                s = self.state(s).link
                matched[0] = self.length(s)
                to = self.step(s, tokens[i])
            if to != NONE:
                s = to
                matched[0] += 1
        while s != 0 and self.first(s) >= self.n:  # only at the very end: nothing follows it
            s = self.state(s).link
            matched[0] = self.length(s)
        return s

    cdef int32_t occurrence(self, int32_t s, int wanted) noexcept nogil:
        """End of the best occurrence of ``s`` (see draft), or NONE at the root."""
        if s == 0:
            return NONE
        if self.state(s).recent + wanted <= self.n:
            return self.state(s).recent
        if self.state(s).prior + wanted <= self.n:
            return self.state(s).prior
        return self.first(s)
