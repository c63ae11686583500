"""The committed text of one sequence, and what it suggests as its continuation."""

from libc.stdint cimport int32_t, uint64_t

from ngramspec._native.contexts cimport ContextTable, Slot
from ngramspec._native.keys cimport Keys
from ngramspec._native.places cimport PLACES, Place, Text
from ngramspec._native.recent cimport Recent


cdef class CommittedText:
    cdef Text text
    cdef ContextTable table
    cdef uint64_t salt          # the table's
    cdef int min_match          # shortest match to copy from; 0: no copies
    cdef Slot unigrams          # the most frequent tokens
    cdef Recent recent          # counted up to recent_n; updated when a tree needs it
    cdef Py_ssize_t recent_n
    cdef Keys tail              # of the contexts at the text's end
    cdef Place places[PLACES]

    cdef int append(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
    cdef void look_up(self, const Keys* keys, const Slot** known) noexcept nogil
    cdef void prefetch(self, const Keys* keys) noexcept nogil
    cdef void find_places(self, const Slot** known) noexcept nogil
    cdef void follow(self, Py_ssize_t n) noexcept nogil
    cdef void count_recent(self) noexcept nogil
