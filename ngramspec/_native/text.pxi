"""The committed text of one sequence: its contexts, its places, its frequent and recent tokens.

A context's slot keeps ``LEADERS`` continuations in order of recency. A new one replaces the one
with the lowest count; on ties, the oldest. At ``FADE_AT`` all its counts are halved. The counts are
therefore exact for contexts with few continuations, recent for those with many, and a context has a
fixed size. Contexts are identified by their 64-bit hash only, as in the NGramTable.

A place is where the text may be continued as before. It is followed as long as the sequence
continues like the text there. The match is the longest of the one followed so far and those at the
latest occurrences of the last one to three tokens.

Invariant: every token is counted after each of its contexts, a context's counts do not depend on
the table's layout, and a place is NONE or inside the text. Costs: a committed token four counts, a
position four look-ups, each with one cache miss and O(1) amortised over growth. Finding the places
compares at most ``FAR * 3 + NEAR_LENGTH * (BEFORE + AFTER)`` tokens. Memory: 4 bytes per token, and
32 bytes per context at 3/8 to 3/4 load. The owner prevents concurrent use.
"""

cdef enum:
    CONTEXTS = 4            # the last one, two and three tokens, and the token before the last
    ORDERS = CONTEXTS - 1   # those without a gap; the one with index m has m + 1 tokens
    SKIP = ORDERS           # index of the one that skips the last token
    SKIP_SEED = 32          # its hash seed; the others use their n-gram's order
    LEADERS = 3         # continuations kept per context

cdef enum:
    MATCH = 0           # the longest known match of the text's end
    RESUME = 1          # where the last copy would continue after a substituted token
    NEAR = 2            # the best match around there, after an insertion or a deletion
    PLACES = 3
    FAR = 64            # maximum number of tokens compared to find a match's length
    RECENT = 64         # tokens kept

cdef struct ContextKeys:           # keys of a position's contexts; 0 where the text is too short
    uint64_t of[CONTEXTS]

cdef struct Slot:       # 32 bytes, never across two cache lines; empty while total == 0
    uint64_t key
    int32_t token[LEADERS]      # continuations, the most recent first; NONE after the last
    uint8_t count[LEADERS]
    uint8_t total               # of all continuations, including those no longer kept
    int32_t last                # position of the most recent continuation

cdef struct Text:
    int32_t* tokens
    Py_ssize_t cap, n

cdef struct Place:
    int32_t at          # position of the next token, or NONE: no place
    int32_t length      # tokens that matched before it; for a resumed copy, before it was left
    int32_t since       # resumed: tokens since the copy was left; near: distance from there

cdef struct Recent:
    int32_t token[RECENT]   # the most recent first; NONE after the last
    uint8_t count[RECENT]
    uint8_t total           # of all tokens, including replaced ones
    int used


cdef inline ContextKeys keys_of(const int32_t* end, Py_ssize_t n, uint64_t salt) noexcept nogil:
    """Keys of the contexts of a text of ``n`` tokens that ends before ``end``."""
    cdef ContextKeys keys
    keys.of[0] = xxh64(end - 1, 1, 2, salt) if n >= 1 else 0
    keys.of[1] = xxh64(end - 2, 2, 3, salt) if n >= 2 else 0
    keys.of[2] = xxh64(end - 3, 3, 4, salt) if n >= 3 else 0
    keys.of[SKIP] = xxh64(end - 2, 1, SKIP_SEED, salt) if n >= 2 else 0
    return keys


cdef inline int leader(const Slot* c) noexcept nogil:
    """Index of the most frequent continuation; on ties, the more recent."""
    cdef int best = 0, i
    for i in range(1, LEADERS):
        if c.count[i] > c.count[best]:
            best = i
    return best


cdef enum:
    FADE_AT = 255
    LEAST_SLOTS = 64
    RECENT_SPAN = 2048  # last tokens that are counted; older ones have faded
    BEFORE = 16         # positions searched before a resumed copy
    AFTER = 32          # positions searched after it
    NEAR_LENGTH = 8     # tokens compared at each position


cdef inline void count_token(
    int32_t* tokens, uint8_t* counts, uint8_t* total, int size, int32_t token
) noexcept nogil:
    """Count one of ``size`` tokens and make it the first; a new one replaces the rarest, oldest."""
    cdef int i, k = index_of(tokens, size, token)
    cdef uint8_t seen
    if k == NONE:
        k = size - 1
        for i in range(size - 2, -1, -1):
            if counts[i] < counts[k]:
                k = i
        counts[k] = 0
    seen = counts[k] + 1
    while k > 0:
        tokens[k] = tokens[k - 1]
        counts[k] = counts[k - 1]
        k -= 1
    tokens[0] = token
    counts[0] = seen
    total[0] += 1
    if total[0] == FADE_AT:
        total[0] = FADE_AT // 2
        for i in range(size):
            counts[i] >>= 1


cdef inline void note(Slot* c, int32_t token, int32_t at) noexcept nogil:
    """Count a continuation in its slot."""
    count_token(c.token, c.count, &c.total, LEADERS, token)
    c.last = at


cdef class ContextTable:
    """Leading continuations by context."""

    cdef Slot* slots            # open addressing on the key's lowest bits, at most 3/4 full
    cdef Py_ssize_t cap, used
    cdef uint64_t salt

    def __cinit__(self):
        self.salt = process_salt()
        if self.grow() < 0:
            raise MemoryError("context table")

    def __dealloc__(self):
        free(self.slots)

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(ContextTable) + self.cap * sizeof(Slot)

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken; return the longest probe."""
        cdef Py_ssize_t i, k, used = 0, probe = 0
        cdef Slot* c
        for i in range(self.cap):
            c = &self.slots[i]
            if c.total == 0:
                continue
            used += 1
            assert self.find(c.key) == c, "a context cannot be found again"
            probe = max(probe, <Py_ssize_t>(<uint64_t>i - c.key & <uint64_t>(self.cap - 1)))
            assert sum([c.count[k] for k in range(LEADERS)]) <= c.total < FADE_AT
            for k in range(LEADERS):
                assert (c.token[k] == NONE) <= (c.count[k] == 0)
        assert used == self.used and 4 * used <= 3 * self.cap
        return probe + 1

    cdef Py_ssize_t place(self, uint64_t key) noexcept nogil:
        """The index of a context's slot, or of the empty slot where it would go."""
        cdef Py_ssize_t i = <Py_ssize_t>(key & <uint64_t>(self.cap - 1))
        while self.slots[i].total != 0 and self.slots[i].key != key:
            i = (i + 1) & (self.cap - 1)
        return i

    cdef const Slot* find(self, uint64_t key) noexcept nogil:
        """A context's slot, valid until the next count; NULL if it was never seen."""
        cdef const Slot* c = &self.slots[self.place(key)]
        return c if c.total else NULL

    cdef int count(self, uint64_t key, int32_t token, int32_t at) noexcept nogil:
        """Count a continuation: 0, or -1 without memory and with nothing changed."""
        cdef Slot* c = &self.slots[self.place(key)]
        cdef int k
        if c.total == 0:
            if 4 * (self.used + 1) > 3 * self.cap:
                if self.grow() < 0:
                    return -1
                c = &self.slots[self.place(key)]
            self.used += 1
            c.key = key
            for k in range(LEADERS):
                c.token[k] = NONE
                c.count[k] = 0
        note(c, token, at)
        return 0

    cdef int grow(self) noexcept nogil:
        """Double the slots: 0, or -1 without memory and with nothing changed."""
        cdef Slot* old = self.slots
        cdef void* grown
        cdef Py_ssize_t i, old_cap = self.cap, cap = max(2 * self.cap, <Py_ssize_t>LEAST_SLOTS)
        if posix_memalign(&grown, 64, <size_t>cap * sizeof(Slot)):
            return -1
        memset(grown, 0, <size_t>cap * sizeof(Slot))
        self.slots = <Slot*>grown
        self.cap = cap
        for i in range(old_cap):
            if old[i].total:
                self.slots[self.place(old[i].key)] = old[i]
        free(old)
        return 0


cdef class CommittedText:
    """One sequence's own text as a source of candidates."""

    cdef Text text
    cdef ContextTable table
    cdef int min_match          # shortest match to copy from; 0: no copies
    cdef Slot unigrams          # the most frequent tokens
    cdef Recent recent          # counted up to recent_n; updated when a tree needs it
    cdef Py_ssize_t recent_n
    cdef ContextKeys tail              # of the contexts at the text's end
    cdef Place places[PLACES]

    def __cinit__(self, int min_match):
        cdef int i
        self.min_match = min_match
        self.table = ContextTable()
        for i in range(LEADERS):
            self.unigrams.token[i] = NONE
        for i in range(PLACES):
            self.places[i].at = NONE
        for i in range(RECENT):
            self.recent.token[i] = NONE

    def __dealloc__(self):
        free(self.text.tokens)

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(CommittedText) + self.text.cap * sizeof(int32_t) + self.table.sizeof()

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        cdef int i
        for i in range(PLACES):
            at = self.places[i].at
            assert at == NONE or 0 <= at < self.text.n, "a place outside its text"
        return self.table.check_integrity()

    cdef int append(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        """Count ``n`` tokens: 0, or -1 without memory."""
        cdef Text* text = &self.text
        cdef ContextKeys next
        cdef Py_ssize_t i
        cdef int m
        if text.n + n > text.cap and reserve(
            <void**>&text.tokens, &text.cap, 2 * (text.n + n) + 64, sizeof(int32_t)
        ) < 0:
            return -1
        for i in range(n):
            text.tokens[text.n] = tokens[i]
            next = keys_of(text.tokens + text.n + 1, text.n + 1, self.table.salt)
            self.prefetch(&next)  # needed when the next token is counted
            for m in range(CONTEXTS):
                if self.tail.of[m]:
                    if self.table.count(self.tail.of[m], tokens[i], <int32_t>text.n) < 0:
                        return -1
            note(&self.unigrams, tokens[i], <int32_t>text.n)
            self.tail = next
            text.n += 1
        return 0

    cdef void look_up(self, const ContextKeys* keys, const Slot** known) noexcept nogil:
        """Find a position's contexts: CONTEXTS slots, NULL where one never occurred.

        If a context is unknown, so are the longer ones.
        """
        cdef int m
        for m in range(CONTEXTS):
            known[m] = NULL
        for m in range(CONTEXTS):
            if keys.of[m] and (m == 0 or m == SKIP or known[m - 1] != NULL):
                known[m] = self.table.find(keys.of[m])

    cdef void prefetch(self, const ContextKeys* keys) noexcept nogil:
        """Start loading a position's contexts."""
        cdef int m
        for m in range(CONTEXTS):
            prefetch_line(&self.table.slots[keys.of[m] & <uint64_t>(self.table.cap - 1)])

    cdef int32_t token_at(self, int which, int depth) noexcept nogil:
        """The token ``depth`` after the next one at a place; NONE at the end, if no match's."""
        cdef Py_ssize_t at = self.places[which].at, after = at + depth
        if after < self.text.n:
            return self.text.tokens[after]
        return self.text.tokens[at + depth % (self.text.n - at)] if which == MATCH else NONE

    cdef int agreement(self, Py_ssize_t at, int most) noexcept nogil:
        """How many tokens before ``at`` equal those at the text's end, at most ``most``."""
        cdef const int32_t* tokens = self.text.tokens
        cdef int n = 0
        most = <int>min(<Py_ssize_t>most, at)
        while n < most and tokens[at - 1 - n] == tokens[self.text.n - 1 - n]:
            n += 1
        return n

    cdef int continued(self, int32_t at, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        """How many of ``n`` tokens, from the first, equal those at a place."""
        cdef int i = 0
        if at == NONE:
            return 0
        while i < n and at + i < self.text.n and self.text.tokens[at + i] == tokens[i]:
            i += 1
        return i

    cdef void find_match(self, const Slot** known) noexcept nogil:
        """Move the match to the latest occurrence of the last tokens, if more tokens agree there.

        ``known`` are the contexts at the text's end.
        """
        cdef Place* match = &self.places[MATCH]
        cdef int m, length
        cdef int32_t at
        if match.at == NONE:
            match.length = 0
        for m in range(ORDERS - 1, -1, -1):
            if m + 1 < min(self.min_match, 2) or known[m] == NULL:
                continue
            at = known[m].last
            if at == match.at or at >= self.text.n or match.length >= FAR:
                continue
            length = self.agreement(at, FAR)
            if length > match.length:
                match.at, match.length = at, length
        if match.length < self.min_match:
            match.at, match.length = NONE, 0

    cdef void find_near(self) noexcept nogil:
        """Set the near place: the longest agreement around the resumed copy, then the nearest."""
        cdef Place* near = &self.places[NEAR]
        cdef int32_t last, resumed = self.places[RESUME].at
        cdef Py_ssize_t at
        cdef int length, distance
        near.at, near.length = NONE, 0
        if resumed == NONE:
            return
        last = self.text.tokens[self.text.n - 1]
        for at in range(max(resumed - BEFORE, 1), min(<Py_ssize_t>resumed + AFTER, self.text.n)):
            if self.text.tokens[at - 1] != last or at == resumed or at == self.places[MATCH].at:
                continue
            length = self.agreement(at, NEAR_LENGTH)
            distance = <int>(at - resumed if at > resumed else resumed - at)
            if length > near.length or (length == near.length and distance < near.since):
                near.at, near.length, near.since = <int32_t>at, length, distance

    cdef void follow(self, Py_ssize_t n) noexcept nogil:
        """Advance the places over the ``n`` tokens last committed."""
        cdef Place* match = &self.places[MATCH]
        cdef Place* resume = &self.places[RESUME]
        cdef Place* near = &self.places[NEAR]
        cdef const int32_t* new = self.text.tokens + self.text.n - n
        cdef int copied = self.continued(match.at, new, n)
        cdef int nearby = self.continued(near.at, new, n)
        if copied:
            resume[0] = match[0]
            resume.length += copied
            resume.since = max(<int>n - copied - 1, 0)
        elif nearby:
            resume[0] = near[0]
            resume.length += nearby
            resume.since = <int>n - nearby
        elif resume.at != NONE:
            resume.since += <int>n
        if resume.at != NONE:
            resume.at += <int32_t>n
            if resume.at >= self.text.n - n:
                resume.at = NONE
        near.at = NONE
        if copied == n:
            match.at += <int32_t>n
            match.length += <int>n
        else:
            match.at, match.length = NONE, 0

    cdef void count_recent(self) noexcept nogil:
        """Count the recent tokens up to the text's end."""
        cdef Recent* recent = &self.recent
        self.recent_n = max(self.recent_n, self.text.n - RECENT_SPAN)
        while self.recent_n < self.text.n:
            count_token(
                recent.token, recent.count, &recent.total, RECENT, self.text.tokens[self.recent_n]
            )
            self.recent_n += 1
        while recent.used < RECENT and recent.token[recent.used] != NONE:
            recent.used += 1
