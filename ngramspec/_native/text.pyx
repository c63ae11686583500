"""The committed text of one sequence: its contexts, its places, its frequent and recent tokens.

A context's slot keeps ``LEADERS`` continuations in order of recency. A new one replaces the one
with the lowest count; on ties, the oldest. At ``FADE_AT`` all its counts are halved. The counts are
therefore exact for contexts with few continuations, recent for those with many, and a context has a
fixed size. Slots lie in segments that split:

    directory   2**bits pointers, by the key's highest bits: extendible hashing. A doubled directory
                begins empty; an entry is copied from the previous one when it is first needed
    segment     open addressing on the key's lowest bits, at most 3/4 full; splits in two when full

A directory has at most ``2 * SPARSEST`` entries per segment: at most 2 kB per segment of 8 kB. A
full segment that may not split, because the directory would become too sparse, accepts no new
context. That needs some 190 contexts whose keys begin alike, which does not happen under a secret
salt. Contexts are identified by their 64-bit hash only, as in the NGramTable.

A place is where the text may be continued as before. It is followed as long as the sequence
continues like the text there. The match is the longest of the one followed so far and those at the
latest occurrences of the last one to three tokens.

Invariant: every token is counted after each of its contexts, a context's counts do not depend on
the table's layout, and a place is NONE or inside the text. Costs: a committed token four counts, a
position four look-ups, each O(1) at worst, where a count splits one segment; no step ever moves the
whole table. Finding the places compares at most ``FAR * 3 + NEAR_LENGTH * (BEFORE + AFTER)``
tokens. Memory: 4 bytes per token, and 32 bytes per context at 3/8 to 3/4 load. The owner prevents
concurrent use.
"""

from libc.stdint cimport int32_t, uint64_t, uint8_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove, memset

from ngramspec._native.common cimport NONE, process_salt, reserve, start_of, token_view, xxh64

cdef enum:
    FADE_AT = 255
    FULL = 3 * SEGMENT // 4
    LONGEST = 7

cdef enum:
    RECENT_SPAN = 2048  # last tokens that are counted; older ones have faded
    BEFORE = 16         # positions searched before a resumed copy
    AFTER = 32          # positions searched after it
    NEAR_LENGTH = 8     # tokens compared at each position


cdef inline void use(Recent* r, int32_t token) noexcept nogil:
    """Count a token and make it the most recent."""
    cdef int i, at = 0
    cdef int32_t count = 0
    while at < r.used and r.token[at] != token:
        at += 1
    if at < r.used:
        count = r.count[at]
    elif at < RECENT:
        r.used += 1
    else:
        at -= 1
        for i in range(RECENT - 2, -1, -1):
            if r.count[i] < r.count[at]:
                at = i
    memmove(&r.token[1], &r.token[0], at * sizeof(int32_t))
    memmove(&r.count[1], &r.count[0], at * sizeof(int32_t))
    r.token[0] = token
    r.count[0] = count + 1
    r.total += 1
    if r.total == RECENT_FADE_AT:
        r.total = RECENT_FADE_AT // 2
        for i in range(r.used):
            r.count[i] >>= 1


cdef class ContextTable:
    """Leading continuations by context."""

    def __cinit__(self):
        self.salt = process_salt()
        self.bits = 1
        self.directory = self.directories[1] = <Segment**>calloc(2, sizeof(Segment*))
        if self.directory == NULL:
            raise MemoryError("context table")
        self.directory[0] = self.directory[1] = self.take_segment(0)
        if self.directory[0] == NULL:
            raise MemoryError("context table")

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.segment_n):
            free(self.segments[i])
        free(self.segments)
        for i in range(MOST_BITS + 1):
            free(self.directories[i])

    def __len__(self):
        """Contexts known."""
        cdef Py_ssize_t i, used = 0
        for i in range(self.segment_n):
            used += self.segments[i].used
        return used

    def add(self, context, int token, int at, int seed=0):
        """Count that ``token``, at position ``at``, followed a context (int32, 0..7 tokens)."""
        if token < 0:
            raise ValueError(f"token must be >= 0, got {token}")
        if self.count(self.key_of(context, seed), token, at) < 0:
            raise MemoryError("context table")

    def get(self, context, int seed=0):
        """([(token, count), ...] by recency, total, last position), or None if never seen."""
        cdef const Slot* found = self.find(self.key_of(context, seed))
        cdef Slot c
        cdef int i
        if found == NULL:
            return None
        c = found[0]  # making lists may run the garbage collector, which may call ``add``
        kept = [(c.token[i], c.count[i]) for i in range(LEADERS) if c.token[i] != NONE]
        return kept, c.total, c.last

    def sizeof(self):
        """Bytes allocated."""
        return (
            sizeof(ContextTable)
            + (2 << self.bits) * sizeof(Segment*)
            + self.segment_cap * sizeof(Segment*)
            + self.segment_n * sizeof(Segment)
        )

    def longest_probe(self):
        """Largest number of slots inspected to find a context; 1 without collisions. O(n)."""
        cdef Py_ssize_t i, j, longest = 0
        for i in range(self.segment_n):
            for j in range(SEGMENT):
                if self.segments[i].slots[j].total:
                    home = self.segments[i].slots[j].key & (SEGMENT - 1)
                    longest = max(longest, ((j - home) & (SEGMENT - 1)) + 1)
        return longest

    def check_integrity(self):
        """Walk all slots and directory entries; raise an AssertionError on a broken invariant."""
        cdef Py_ssize_t i, j, k
        cdef Segment* s
        cdef Slot* c
        assert self.bits == 1 or 1 << self.bits <= 2 * SPARSEST * self.segment_n, "too sparse"
        for i in range(self.segment_n):
            s, used = self.segments[i], 0
            assert s.depth <= self.bits and s.used <= FULL
            for j in range(SEGMENT):
                c = &s.slots[j]
                if c.total == 0:
                    continue
                used += 1
                assert self.find(c.key) == c, "a context cannot be found again"
                assert sum([c.count[k] for k in range(LEADERS)]) <= c.total < FADE_AT
                for k in range(LEADERS):
                    assert (c.token[k] == NONE) <= (c.count[k] == 0)
            assert used == s.used
        for i in range(1 << self.bits):
            s = self.segment(<uint64_t>i << (64 - self.bits))
            for j in range(SEGMENT):
                if s.slots[j].total and s.depth:
                    assert s.slots[j].key >> (64 - s.depth) == <uint64_t>i >> (self.bits - s.depth)

    cdef uint64_t key_of(self, object context, int seed) except? 0:
        cdef const int32_t[::1] view = token_view(context, "context")
        if view.shape[0] > LONGEST:
            raise ValueError(f"context must have 0..{LONGEST} tokens, got {view.shape[0]}")
        return xxh64(start_of(view), <int>view.shape[0], <uint64_t>seed, self.salt)

    cdef const Slot* find(self, uint64_t key) noexcept nogil:
        """A context's slot, valid until the next count; NULL if it was never seen."""
        cdef Segment* s = self.segment(key)
        cdef int i = <int>(key & (SEGMENT - 1))
        while s.slots[i].total != 0:
            if s.slots[i].key == key:
                return &s.slots[i]
            i = (i + 1) & (SEGMENT - 1)
        return NULL

    cdef int count(self, uint64_t key, int32_t token, int32_t at) noexcept nogil:
        """Count a continuation: 0, or -1 without memory and with nothing changed."""
        cdef Segment* s
        cdef int i, k, failed
        while True:
            s = self.segment(key)
            i = <int>(key & (SEGMENT - 1))
            while s.slots[i].total != 0 and s.slots[i].key != key:
                i = (i + 1) & (SEGMENT - 1)
            if s.slots[i].total != 0:
                break
            if s.used < FULL:
                s.used += 1
                s.slots[i].key = key
                for k in range(LEADERS):
                    s.slots[i].token[k] = NONE
                    s.slots[i].count[k] = 0
                break
            failed = self.split(key)
            if failed:
                return -1 if failed < 0 else 0
        note(&s.slots[i], token, at)
        return 0

    cdef Segment* take_segment(self, int depth) noexcept nogil:
        """A new empty segment, or NULL."""
        cdef Segment* s
        if reserve(
            <void**>&self.segments, &self.segment_cap, self.segment_n + 1, sizeof(Segment*)
        ) < 0 or posix_memalign(<void**>&s, 64, sizeof(Segment)):
            return NULL
        memset(s, 0, sizeof(Segment))
        s.depth = depth
        self.segments[self.segment_n] = s
        self.segment_n += 1
        return s

    cdef Segment* inherit(self, uint64_t key) noexcept nogil:
        """Copy a key's directory entry from the newest older directory that has it."""
        cdef int bits = self.bits
        cdef Segment* s = NULL
        while s == NULL:
            bits -= 1
            s = self.directories[bits][key >> (64 - bits)]
        self.directory[key >> (64 - self.bits)] = s
        return s

    cdef int split(self, uint64_t key) noexcept nogil:
        """Split a key's segment by one more bit: 0, -1 without memory, 1 if it may not split.
        """
        cdef Segment* s = self.segment(key)
        cdef Segment* t
        cdef Segment old
        cdef Segment** doubled
        cdef Py_ssize_t i, half, first
        if s.depth == self.bits:
            if self.bits == MOST_BITS or 1 << self.bits > SPARSEST * self.segment_n:
                return 1
            doubled = <Segment**>calloc(<size_t>2 << self.bits, sizeof(Segment*))
            if doubled == NULL:
                return -1
            self.bits += 1
            self.directory = self.directories[self.bits] = doubled
        t = self.take_segment(s.depth + 1)
        if t == NULL:
            return -1
        memcpy(&old, s, sizeof(Segment))
        memset(s, 0, sizeof(Segment))
        s.depth = old.depth + 1
        half = <Py_ssize_t>1 << (self.bits - s.depth)
        first = <Py_ssize_t>(key >> (64 - self.bits)) & ~(2 * half - 1)
        for i in range(first, first + half):  # entries of s may not have been copied yet
            self.directory[i] = s
            self.directory[i + half] = t
        for i in range(SEGMENT):
            if old.slots[i].total:
                put(t if (old.slots[i].key >> (64 - s.depth)) & 1 else s, &old.slots[i])
        return 0


cdef inline void put(Segment* s, const Slot* c) noexcept nogil:
    """Copy a slot into a segment that has room and does not contain it."""
    cdef int i = <int>(c.key & (SEGMENT - 1))
    while s.slots[i].total != 0:
        i = (i + 1) & (SEGMENT - 1)
    s.slots[i] = c[0]
    s.used += 1


cdef void note(Slot* c, int32_t token, int32_t at) noexcept nogil:
    """Count a continuation in its slot and make it the most recent."""
    cdef int i, k = 0
    cdef uint8_t seen
    while k < LEADERS and c.token[k] != token:
        k += 1
    if k == LEADERS:
        k = LEADERS - 1
        for i in range(LEADERS - 2, -1, -1):
            if c.count[i] < c.count[k]:
                k = i
        c.count[k] = 0
    seen = c.count[k] + 1
    while k > 0:
        c.token[k] = c.token[k - 1]
        c.count[k] = c.count[k - 1]
        k -= 1
    c.token[0] = token
    c.count[0] = seen
    c.last = at
    c.total += 1
    if c.total == FADE_AT:
        c.total = FADE_AT // 2
        for i in range(LEADERS):
            c.count[i] >>= 1


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
