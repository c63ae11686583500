"""Copying what followed earlier occurrences of the end of the text, with a suffix automaton.

    prefixes  the states of the text's prefixes, numbered by length; 0 is the root
    clones    the other states, numbered CLONE + k
    edges     transitions; a prefix's own next token is implicit: prefixes[p] -text[p]-> p + 1
    index     open addressing on (source, token), salted -> edge

Built online after Blumer et al. 1985: the link of the newest prefix state is the longest suffix
that occurred before, of any length, exactly. Each state also records the end of its first
occurrence and of two recent ones. A new token updates the ``ANCESTORS`` longest of the suffixes it
matches. "Recent" is exact for these, and may be too early, but never too late, for shorter ones.

Invariant: text[end] is the token that followed an occurrence of the state's strings, for each of
its ends below the text's length. Costs: a token O(1) amortised (a single one can cost as much as
the longest match when that match ends), a drafted token O(1), ``copies`` O(most) occurrences.
Memory: at most 2 states and 3 edges per token, on natural text about 55 bytes per token. One thread
at a time: a second one gets a RuntimeError.
"""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc, free

import numpy as np

from ngramspec._native.common cimport (
    NONE, TokenStructure, gamma_of, process_salt, reserve, scatter, tokens_of,
)

cdef enum:
    CLONE = 1 << 30
    ANCESTORS = 8

cdef struct State:      # 16 bytes
    int32_t link        # state of the longest suffix that also occurs elsewhere; NONE at the root
    int32_t edges       # first explicit edge
    int32_t recent      # end of its most recent recorded occurrence ...
    int32_t prior       # ... and of the one before; text[end] follows an occurrence

cdef struct Clone:      # 24 bytes
    State state
    int32_t length      # of its longest string; for a prefix state, its number
    int32_t first       # end of its first occurrence; for a prefix state, its number

cdef struct Edge:       # 16 bytes
    int32_t source
    int32_t token
    int32_t target
    int32_t next        # next edge of the same source

cdef struct Automaton:
    int32_t* text
    Py_ssize_t text_cap, n
    State* prefixes
    Py_ssize_t prefix_cap
    Clone* clones
    Py_ssize_t clone_cap, clone_n
    Edge* edges
    Py_ssize_t edge_cap, edge_n
    int32_t* index      # edge + 1, or 0
    Py_ssize_t index_cap
    uint64_t salt


cdef inline State* state_of(Automaton* a, int32_t s) noexcept nogil:
    """The state numbered ``s``."""
    return &a.clones[s - CLONE].state if s >= CLONE else &a.prefixes[s]


cdef inline int32_t length_of(const Automaton* a, int32_t s) noexcept nogil:
    """The length of a state's longest string."""
    return a.clones[s - CLONE].length if s >= CLONE else s


cdef inline int32_t first_of(const Automaton* a, int32_t s) noexcept nogil:
    """The end of a state's first occurrence."""
    return a.clones[s - CLONE].first if s >= CLONE else s


cdef inline Py_ssize_t home(const Automaton* a, int32_t source, int32_t token) noexcept nogil:
    cdef uint64_t edge = <uint64_t>source << 32 | <uint64_t>token
    return <Py_ssize_t>(scatter(edge ^ a.salt) & <uint64_t>(a.index_cap - 1))


cdef int32_t find_edge(const Automaton* a, int32_t source, int32_t token) noexcept nogil:
    """The explicit edge from a source for a token, or NONE."""
    cdef Py_ssize_t i = home(a, source, token)
    cdef const Edge* edge
    while a.index[i] != 0:
        edge = &a.edges[a.index[i] - 1]
        if edge.source == source and edge.token == token:
            return a.index[i] - 1
        i = (i + 1) & (a.index_cap - 1)
    return NONE


cdef int32_t step(const Automaton* a, int32_t source, int32_t token) noexcept nogil:
    """The state after ``token``, or NONE."""
    cdef int32_t e
    if source < a.n and a.text[source] == token:
        return source + 1
    e = find_edge(a, source, token)
    return NONE if e == NONE else a.edges[e].target


cdef int add_edge(Automaton* a, int32_t source, int32_t token, int32_t target) noexcept nogil:
    """Add a transition: 0, or -1 with nothing changed."""
    cdef Py_ssize_t i, e, cap = 2 * a.index_cap
    cdef int32_t* grown
    if reserve(<void**>&a.edges, &a.edge_cap, a.edge_n + 1, sizeof(Edge)) < 0:
        return -1
    if 4 * (a.edge_n + 1) > 3 * a.index_cap:
        grown = <int32_t*>calloc(<size_t>cap, sizeof(int32_t))
        if grown == NULL:
            return -1
        free(a.index)
        a.index = grown
        a.index_cap = cap
        for e in range(a.edge_n):
            i = home(a, a.edges[e].source, a.edges[e].token)
            while grown[i] != 0:
                i = (i + 1) & (cap - 1)
            grown[i] = <int32_t>e + 1
    i = home(a, source, token)
    while a.index[i] != 0:
        i = (i + 1) & (a.index_cap - 1)
    a.index[i] = <int32_t>a.edge_n + 1
    a.edges[a.edge_n].source = source
    a.edges[a.edge_n].token = token
    a.edges[a.edge_n].target = target
    a.edges[a.edge_n].next = state_of(a, source).edges
    state_of(a, source).edges = <int32_t>a.edge_n
    a.edge_n += 1
    return 0


cdef int undo(Automaton* a, Py_ssize_t mark) noexcept nogil:
    """Remove the newest token and the edges from ``mark`` on; always -1.

    The newest edges are removed first, so their places in the index can simply be emptied.
    """
    cdef Py_ssize_t i
    while a.edge_n > mark:
        a.edge_n -= 1
        i = home(a, a.edges[a.edge_n].source, a.edges[a.edge_n].token)
        while a.index[i] != a.edge_n + 1:
            i = (i + 1) & (a.index_cap - 1)
        a.index[i] = 0
        state_of(a, a.edges[a.edge_n].source).edges = a.edges[a.edge_n].next
    a.n -= 1
    return -1


cdef int32_t split(Automaton* a, int32_t p, int32_t q, int32_t token) noexcept nogil:
    """Give the strings of ``q`` up to length(p) + 1 a separate state: its number, or NONE."""
    cdef int32_t c = CLONE + <int32_t>a.clone_n
    cdef int32_t e
    if reserve(<void**>&a.clones, &a.clone_cap, a.clone_n + 1, sizeof(Clone)) < 0:
        return NONE
    a.clones[a.clone_n].state = state_of(a, q)[0]
    a.clones[a.clone_n].state.edges = NONE
    a.clones[a.clone_n].length = length_of(a, p) + 1
    a.clones[a.clone_n].first = first_of(a, q)
    a.clone_n += 1
    e = state_of(a, q).edges
    while e != NONE:
        if add_edge(a, c, a.edges[e].token, a.edges[e].target) < 0:
            a.clone_n -= 1
            return NONE
        e = a.edges[e].next
    if q < a.n and add_edge(a, c, a.text[q], q + 1) < 0:
        a.clone_n -= 1
        return NONE
    state_of(a, q).link = c
    while p != NONE and step(a, p, token) == q:
        # never an implicit edge, because those lead to a string just one token longer
        a.edges[find_edge(a, p, token)].target = c
        p = state_of(a, p).link
    return c


cdef int32_t followed(
    Automaton* a, int32_t s, const int32_t* tokens, Py_ssize_t n, int32_t* matched
) noexcept nogil:
    """The state of the longest suffix of text + tokens that is in the text, and its length."""
    cdef int32_t to
    cdef Py_ssize_t i
    if s == NONE:
        s = 0
    matched[0] = length_of(a, s)
    for i in range(n):
        to = step(a, s, tokens[i])
        while to == NONE and s != 0:
            s = state_of(a, s).link
            matched[0] = length_of(a, s)
            to = step(a, s, tokens[i])
        if to != NONE:
            s = to
            matched[0] += 1
    while s != 0 and first_of(a, s) >= a.n:  # only at the end of the text: nothing follows it
        s = state_of(a, s).link
        matched[0] = length_of(a, s)
    return s


cdef int32_t occurrence(Automaton* a, int32_t s, int wanted) noexcept nogil:
    """End of the best occurrence of ``s`` (see CopyIndex.draft), or NONE at the root."""
    if s == 0:
        return NONE
    if state_of(a, s).recent + wanted <= a.n:
        return state_of(a, s).recent
    if state_of(a, s).prior + wanted <= a.n:
        return state_of(a, s).prior
    return first_of(a, s)


cdef class CopyIndex(TokenStructure):
    """Finds earlier occurrences of the end of the text."""

    cdef Automaton automaton

    def __cinit__(self):
        cdef Automaton* a = &self.automaton
        self.name = "copy index"
        a.salt = process_salt()
        a.index_cap, a.prefix_cap = 64, 16
        a.index = <int32_t*>calloc(64, sizeof(int32_t))
        a.prefixes = <State*>calloc(16, sizeof(State))
        if a.index == NULL or a.prefixes == NULL:
            raise MemoryError("copy index")
        a.prefixes[0].link = a.prefixes[0].edges = NONE

    def __dealloc__(self):
        free(self.automaton.text)
        free(self.automaton.prefixes)
        free(self.automaton.clones)
        free(self.automaton.edges)
        free(self.automaton.index)

    def __len__(self):
        """Tokens in the text."""
        return self.automaton.n

    def draft(self, Py_ssize_t gamma, prefix=None, int min_match=1):
        """Copy ``gamma`` tokens that follow the best occurrence of the longest match.

        The best occurrence is the most recent recorded one that is followed by ``gamma`` tokens,
        otherwise the one followed by the most tokens. A copy that reaches the end of the text
        continues with the tokens it has drafted itself. ``prefix``, int32, is taken to follow the
        text. Returned are the tokens, int32 (gamma,), and the match's length: (0,) and 0 when no
        suffix of ``min_match`` tokens occurred before.
        """
        cdef Automaton* a = &self.automaton
        cdef const int32_t* start = NULL
        cdef Py_ssize_t n = 0, i, at
        cdef int32_t s, end, matched = 0
        cdef int wanted = gamma_of(gamma)
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        if prefix is not None:
            start = tokens_of(prefix, &n, "prefix")
        tokens = np.empty(wanted, np.int32)
        cdef int32_t[::1] out = tokens
        self.idle()  # no other thread can run in the rest of this function
        s = followed(a, a.prefixes[a.n].link, start, n, &matched)
        end = NONE if matched < min_match else occurrence(a, s, wanted)
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
        """Copies as in ``draft``, int32 (gamma,) each, of at most ``most`` recorded occurrences.

        Occurrences of the longest match come first, then those of its longest suffix that occurred
        elsewhere, and so on; the most recent of each first.
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
            s = followed(a, a.prefixes[a.n].link, NULL, 0, &matched)
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

    def sizeof(self):
        """Bytes allocated."""
        return (
            sizeof(CopyIndex)
            + (self.automaton.text_cap + self.automaton.index_cap) * sizeof(int32_t)
            + self.automaton.prefix_cap * sizeof(State)
            + self.automaton.clone_cap * sizeof(Clone)
            + self.automaton.edge_cap * sizeof(Edge)
        )

    def check_integrity(self):
        """Walk every state and edge; raise an AssertionError if an invariant is broken.

        Returned is the largest number of index places inspected to find an edge.
        """
        cdef Automaton* a = &self.automaton
        cdef int32_t s, e, k
        cdef Py_ssize_t i, at, seen = 0, probe = 0
        self.idle()
        for s in [*range(a.n + 1), *range(CLONE, CLONE + a.clone_n)]:
            if s != 0:
                assert length_of(a, state_of(a, s).link) < length_of(a, s), "a link is not shorter"
            for k in (first_of(a, s), state_of(a, s).prior, state_of(a, s).recent):
                assert length_of(a, s) <= k <= a.n and first_of(a, s) <= k
                for e in range(1, min(length_of(a, s), 32) + 1):
                    assert a.text[k - e] == a.text[first_of(a, s) - e], "not an occurrence"
            e = state_of(a, s).edges
            while e != NONE:
                seen += 1
                assert a.edges[e].source == s and find_edge(a, s, a.edges[e].token) == e
                assert length_of(a, a.edges[e].target) > length_of(a, s)
                assert a.text[first_of(a, a.edges[e].target) - 1] == a.edges[e].token
                e = a.edges[e].next
        assert seen == a.edge_n and 4 * a.edge_n <= 3 * a.index_cap
        for i in range(a.index_cap):
            if a.index[i] != 0:
                at = home(a, a.edges[a.index[i] - 1].source, a.edges[a.index[i] - 1].token)
                probe = max(probe, (i - at) & (a.index_cap - 1))
        return probe + 1

    cdef int append(self, int32_t token) noexcept nogil:
        cdef Automaton* a = &self.automaton
        cdef Py_ssize_t mark = a.edge_n
        cdef int32_t now = <int32_t>a.n + 1
        cdef int32_t p, q = NONE
        cdef int _k
        if reserve(<void**>&a.text, &a.text_cap, now, sizeof(int32_t)) < 0:
            return -1
        if reserve(<void**>&a.prefixes, &a.prefix_cap, now + 1, sizeof(State)) < 0:
            return -1
        a.text[a.n] = token  # with n, the implicit edge from the previous prefix
        a.n += 1
        a.prefixes[now].link = 0
        a.prefixes[now].edges = NONE
        a.prefixes[now].recent = a.prefixes[now].prior = now
        p = a.prefixes[now - 1].link
        while p != NONE:
            q = step(a, p, token)
            if q != NONE:
                break
            if add_edge(a, p, token, now) < 0:
                return undo(a, mark)
            p = state_of(a, p).link
        if p != NONE:
            if length_of(a, q) != length_of(a, p) + 1:
                q = split(a, p, q, token)
                if q == NONE:
                    return undo(a, mark)
            a.prefixes[now].link = q
        q = a.prefixes[now].link
        for _k in range(ANCESTORS):  # note the position in the longest states that end there
            if q == NONE or q == 0:
                break
            state_of(a, q).prior = state_of(a, q).recent
            state_of(a, q).recent = now
            q = state_of(a, q).link
        return 0
