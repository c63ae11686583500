"""Suffix automaton of a text, with the positions where its states' strings ended.

    prefixes  the states of the text's prefixes, numbered by length; 0 is the root
    clones    the other states, numbered CLONE + k
    edges     transitions; a prefix's own next token is implicit: prefixes[p] -text[p]-> p + 1
    index     open addressing on (source, token), salted -> edge
"""

from libc.stdint cimport int32_t, uint64_t

cdef enum:
    CLONE = 1 << 30

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


cdef int automaton_init(Automaton* a) noexcept nogil
cdef void automaton_free(Automaton* a) noexcept nogil
cdef int automaton_append(Automaton* a, int32_t token) noexcept nogil
cdef int32_t automaton_follow(
    Automaton* a, int32_t s, const int32_t* tokens, Py_ssize_t n, int32_t* matched
) noexcept nogil
cdef int32_t automaton_occurrence(Automaton* a, int32_t s, int wanted) noexcept nogil
cdef Py_ssize_t automaton_sizeof(const Automaton* a) noexcept nogil
cdef object automaton_longest_probe(Automaton* a)
cdef int automaton_check(Automaton* a) except -1
