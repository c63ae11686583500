"""Suffix automaton of the committed tokens, with where each of its states ended.

    prefixes  the states of the text's prefixes, numbered by length; 0 is the root
    clones    the other states, numbered CLONE + k
    edges     transitions; a prefix's own next token is implicit: prefixes[p] -text[p]-> p + 1
    index     open addressing on (source, token), salted -> edge
"""

from libc.stdint cimport int32_t, uint64_t

cdef struct State:      # 16 bytes
    int32_t link        # state of the longest suffix that occurs elsewhere too; NONE at the root
    int32_t edges       # first explicit edge
    int32_t recent      # end of its most recent occurrence known here ...
    int32_t prior       # ... and of the one before; text[end] follows an occurrence

cdef struct Clone:      # 24 bytes
    State state
    int32_t length      # of its longest string; a prefix state's is its number
    int32_t first       # end of its first occurrence; a prefix state's is its number

cdef struct Edge:       # 16 bytes
    int32_t source
    int32_t token
    int32_t target
    int32_t next        # of the same source


cdef class CopyIndex:
    cdef int32_t* text
    cdef Py_ssize_t text_cap, n
    cdef State* prefixes
    cdef Py_ssize_t prefix_cap
    cdef Clone* clones
    cdef Py_ssize_t clone_cap, clone_n
    cdef Edge* edges
    cdef Py_ssize_t edge_cap, edge_n
    cdef int32_t* index
    cdef Py_ssize_t index_cap
    cdef uint64_t salt
    cdef bint busy

    cdef int idle(self) except -1
    cdef State* state(self, int32_t s) noexcept nogil
    cdef int32_t length(self, int32_t s) noexcept nogil
    cdef int32_t first(self, int32_t s) noexcept nogil
    cdef Py_ssize_t home(self, int32_t source, int32_t token) noexcept nogil
    cdef int32_t find_edge(self, int32_t source, int32_t token) noexcept nogil
    cdef int32_t step(self, int32_t source, int32_t token) noexcept nogil
    cdef int add_edge(self, int32_t source, int32_t token, int32_t target) noexcept nogil
    cdef int append(self, int32_t token) noexcept nogil
    cdef int32_t split(self, int32_t p, int32_t q, int32_t token) noexcept nogil
    cdef int undo(self, Py_ssize_t mark) noexcept nogil
    cdef void visit(self) noexcept nogil
    cdef int32_t follow(
        self, int32_t s, const int32_t* tokens, Py_ssize_t n, int32_t* matched
    ) noexcept nogil
    cdef int32_t occurrence(self, int32_t s, int wanted) noexcept nogil
