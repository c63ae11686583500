"""The committed text of one sequence: its contexts, its places, its frequent and recent tokens.

The match is the longest of the one followed so far and those at the latest occurrences of the last
one to three tokens.

Invariant: every token is counted after each of its contexts, and a place is NONE or inside the
text. Costs: a committed token four counts, a position four look-ups; finding the places compares at
most ``FAR * 3 + NEAR_LENGTH * (BEFORE + AFTER)`` tokens. Memory: 4 bytes per token, and the context
table. The owner prevents concurrent use.
"""

from libc.stdint cimport int32_t
from libc.stdlib cimport free

from ngramspec._native.common cimport NONE, reserve
from ngramspec._native.contexts cimport LEADERS, note
from ngramspec._native.keys cimport CONTEXTS, ORDERS, SKIP, keys_of
from ngramspec._native.places cimport FAR, MATCH, NEAR, RESUME
from ngramspec._native.recent cimport use

cdef enum:
    RECENT_SPAN = 2048  # last tokens that are counted; older ones have faded
    BEFORE = 16         # positions searched before a resumed copy
    AFTER = 32          # positions searched after it
    NEAR_LENGTH = 8     # tokens compared at each position


cdef class CommittedText:
    """One sequence's own text as a source of candidates."""

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


cdef inline int agreement(const Text* text, Py_ssize_t at, int most) noexcept nogil:
    """How many tokens before ``at`` equal those at the text's end, at most ``most``."""
    cdef int n = 0
    most = <int>min(<Py_ssize_t>most, at)
    while n < most and text.tokens[at - 1 - n] == text.tokens[text.n - 1 - n]:
        n += 1
    return n


cdef inline int continued(const Place* place, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
    """How many of ``n`` tokens, from the first, equal those at a place."""
    cdef int i = 0
    if place.at == NONE:
        return 0
    while (
        i < n and place.at + i < place.text.n and place.text.tokens[place.at + i] == tokens[i]
    ):
        i += 1
    return i


cdef void find_match(
    Place* places, const Text* text, const Slot** known, int min_match
) noexcept nogil:
    """Move the match to the latest occurrence of the last tokens, if more tokens agree there."""
    cdef Place* match = &places[MATCH]
    cdef int m, length
    cdef int32_t at
    if match.at == NONE:
        match.length = 0
    for m in range(ORDERS - 1, -1, -1):
        if m + 1 < min(min_match, 2) or known[m] == NULL:
            continue
        at = known[m].last
        if at == match.at or at >= text.n or match.length >= FAR:
            continue
        length = agreement(text, at, FAR)
        if length > match.length:
            match.text = text
            match.at = at
            match.length = length
    if match.length < min_match:
        match.at = NONE
        match.length = 0


cdef void find_near(Place* places, const Text* text) noexcept nogil:
    """Set the near place: the longest agreement around the resumed copy; on ties, the nearest."""
    cdef Place* near = &places[NEAR]
    cdef int32_t last, resumed = places[RESUME].at
    cdef Py_ssize_t at
    cdef int length, distance
    near.at = NONE
    near.length = 0
    if resumed == NONE:
        return
    near.text = text
    last = text.tokens[text.n - 1]
    for at in range(max(resumed - BEFORE, 1), min(<Py_ssize_t>resumed + AFTER, text.n)):
        if text.tokens[at - 1] != last or at == resumed or at == places[MATCH].at:
            continue
        length = agreement(text, at, NEAR_LENGTH)
        distance = <int>(at - resumed if at > resumed else resumed - at)
        if length > near.length or (length == near.length and distance < near.since):
            near.at = <int32_t>at
            near.length = length
            near.since = distance


cdef void follow_places(Place* places, const Text* text, Py_ssize_t n) noexcept nogil:
    """Advance the places over the ``n`` tokens last committed to ``text``."""
    cdef Place* match = &places[MATCH]
    cdef Place* resume = &places[RESUME]
    cdef Place* near = &places[NEAR]
    cdef const int32_t* new = text.tokens + text.n - n
    cdef int copied = continued(match, new, n)
    cdef int nearby = continued(near, new, n)
    if copied:
        resume[0] = match[0]
        resume.length = match.length + copied
        resume.since = max(<int>n - copied - 1, 0)
    elif nearby:
        resume[0] = near[0]
        resume.length = near.length + nearby
        resume.since = <int>n - nearby
    elif resume.at != NONE:
        resume.since += <int>n
    if resume.at != NONE:
        resume.at += <int32_t>n
        if resume.at >= text.n - n:
            resume.at = NONE
    near.at = NONE
    if copied == n:
        match.at += <int32_t>n
        match.length += <int>n
    else:
        match.at = NONE
        match.length = 0
