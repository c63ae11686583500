"""The committed text of one sequence: its contexts, its places, its frequent and recent tokens.

Invariant: every token is counted after each of its contexts, and a place is NONE or inside the
text. Costs: a committed token four counts, a position four look-ups; finding the places is bounded
(places.pyx). Memory: 4 bytes per token, and the context table. The owner prevents concurrent
use.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport free

from ngramspec._native.common cimport NONE, reserve
from ngramspec._native.contexts cimport LEADERS, note
from ngramspec._native.keys cimport CONTEXTS, SKIP, keys_of
from ngramspec._native.places cimport find_match, find_near, follow_places
from ngramspec._native.recent cimport use

cdef enum:
    RECENT_SPAN = 2048  # last tokens that are counted; older ones have faded


cdef class CommittedText:
    """One sequence's own text as a source of candidates.

    Args:
        min_match: shortest match to copy from, >= 1; 0: no place is followed.
    """

    def __cinit__(self, int min_match):
        cdef int i
        self.min_match = min_match
        self.table = ContextTable()
        self.salt = self.table.salt
        for i in range(LEADERS):
            self.unigrams.token[i] = NONE
        for i in range(PLACES):
            self.places[i].text = &self.text
            self.places[i].at = NONE

    def __dealloc__(self):
        free(self.text.tokens)

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(CommittedText) + self.text.cap * sizeof(int32_t) + self.table.sizeof()

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        cdef int i
        self.table.check_integrity()
        for i in range(PLACES):
            at = self.places[i].at
            assert at == NONE or 0 <= at < self.places[i].text.n, "a place outside its text"

    cdef int append(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        """Count ``n`` tokens: 0, or -1 without memory."""
        cdef Text* text = &self.text
        cdef Keys next
        cdef Py_ssize_t i
        cdef int m
        if text.n + n > text.cap and reserve(
            <void**>&text.tokens, &text.cap, 2 * (text.n + n) + 64, sizeof(int32_t)
        ) < 0:
            return -1
        for i in range(n):
            text.tokens[text.n] = tokens[i]
            next = keys_of(text.tokens + text.n + 1, text.n + 1, self.salt)
            self.prefetch(&next)  # needed when the next token is counted
            for m in range(CONTEXTS):
                if self.tail.of[m]:
                    if self.table.count(self.tail.of[m], tokens[i], <int32_t>text.n) < 0:
                        return -1
            note(&self.unigrams, tokens[i], <int32_t>text.n)
            self.tail = next
            text.n += 1
        return 0

    cdef void look_up(self, const Keys* keys, const Slot** known) noexcept nogil:
        """Find a position's contexts: CONTEXTS slots, NULL where one never occurred.

        If a context is unknown, so are the longer ones.
        """
        cdef int m
        for m in range(CONTEXTS):
            known[m] = NULL
        for m in range(CONTEXTS):
            if keys.of[m] and (m == 0 or m == SKIP or known[m - 1] != NULL):
                known[m] = self.table.find(keys.of[m])

    cdef void prefetch(self, const Keys* keys) noexcept nogil:
        """Start loading a position's contexts."""
        cdef int m
        for m in range(CONTEXTS):
            self.table.prefetch(keys.of[m])

    cdef void find_places(self, const Slot** known) noexcept nogil:
        """Find where to copy from, by the contexts at the text's end."""
        if self.min_match:
            find_match(self.places, &self.text, known, self.min_match)
        find_near(self.places, &self.text)

    cdef void follow(self, Py_ssize_t n) noexcept nogil:
        """Advance the places over the ``n`` tokens last committed."""
        follow_places(self.places, &self.text, n)

    cdef void count_recent(self) noexcept nogil:
        """Count the recent tokens up to the text's end."""
        self.recent_n = max(self.recent_n, self.text.n - RECENT_SPAN)
        while self.recent_n < self.text.n:
            use(&self.recent, self.text.tokens[self.recent_n])
            self.recent_n += 1
