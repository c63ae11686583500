"""Text of earlier requests in a ring that many requests share, and one request's access to it.

    ring    capacity codes: token ids, SEPARATOR before each document
    heads   for each level, by the hash of that many tokens: the latest place after them
    links   for each level and place: the previous place with the same hash
    kinds   for each GRAIN codes: hashes of how the prompt begins whose request wrote the last one

Positions count all codes ever written, so none is reused; a position's slot is position % capacity.
Heads and links keep its last 32 bits. They may refer to text that was overwritten, or to that of
another context, so every place is compared with the text before it is used. Links only go back.

Requests whose prompts begin alike are kin, the nearer the more tokens are equal. Of places that
agree equally, those of the nearest kin come first. They are not hidden by later text of others,
because WALK places of each kin are compared.

Costs: a token is entered in RING_LEVELS tables. A look-up compares at most STEPS places per level.
Memory: CODE_BYTES per code, all allocated at the start. Any number of threads may use it: one lock
is held for at most BATCH tokens added, one look-up, or COPIED codes read or erased. The GIL is
never acquired while the lock is held, so the two cannot deadlock.

After the ring was cleared, a stream adds nothing until its document ends.

A stream adds a request's text BATCH tokens at a time, after its last ones. If other requests' text
intervened, the last OVERLAP tokens are first written again, so that they find the text that
follows. A request does not find its own text while that lies in the last OWN_RANGES pieces, because
the sequence itself finds it better. Memory: 1 kB per stream, which one thread uses at a time.
"""

from cpython.pythread cimport (
    WAIT_LOCK, PyThread_acquire_lock, PyThread_allocate_lock, PyThread_free_lock,
    PyThread_release_lock, PyThread_type_lock,
)
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memmove

import numpy as np

from ngramspec._native.common cimport (
    NONE, check_ids, index_of, prefetch_line, process_salt, tokens_of, xxh64,
)
from ngramspec._native.store_source cimport (
    KIN_LEAST, KIN_LEVELS, SEPARATOR, Found, StoreSource, is_behind,
)

cdef extern from *:
    """
    #include <stdint.h>
    #include <sys/mman.h>
    /* Ask for huge pages in zeroed memory of several of them; it works without. */
    static void use_huge_pages(void* memory, size_t bytes) {
    #ifdef MADV_HUGEPAGE
        const uintptr_t page = (uintptr_t)1 << 21;
        const uintptr_t begin = ((uintptr_t)memory + page - 1) & ~(page - 1);
        const uintptr_t end = ((uintptr_t)memory + bytes) & ~(page - 1);
        if (end > begin && bytes >= 2 * page)
            madvise((void*)begin, end - begin, MADV_HUGEPAGE);
    #endif
    }
    """
    void use_huge_pages(void* memory, size_t size) noexcept nogil

cdef enum:
    RING_LEVELS = 3     # context lengths that have places
    RING_DEEPEST = 64   # maximum number of a context's tokens that are compared
    WALK = 48           # maximum number of a context's places of each kin that are compared
    STEPS = 192         # maximum number of links that are followed for them
    KIN_BITS = 16       # of the hash of a prompt's beginning
    GRAIN = 8           # codes that share a kind
    BATCH = 64          # tokens added under one lock
    COPIED = 4096       # codes copied or erased under one lock
    CODE_BYTES = 4 + 8 * RING_LEVELS + 8 // GRAIN   # memory per code
    TAIL = 6            # tokens of the longest context that has places
    OWN_RANGES = 32     # ranges of a stream's own text that are remembered
    OVERLAP = 16        # tokens that are repeated after other requests' text intervened

cdef struct Range:      # positions begin <= p < end
    uint64_t begin, end

cdef struct Own:        # ranges of a stream's own text, the newest at ``last``
    Range ranges[OWN_RANGES]
    int n, last

BYTES_PER_CODE = CODE_BYTES
LEAST_CODES = 16
MAX_CODES = <int64_t>1 << 31
WRITTEN_AGAIN = OVERLAP


cdef inline bint is_own(const Own* own, uint64_t at) noexcept nogil:
    cdef int i
    for i in range(own.n):
        if own.ranges[i].begin <= at < own.ranges[i].end:
            return True
    return False


cdef inline int length_of(int level) noexcept nogil:
    """Tokens of a level's contexts, the shortest first."""
    return 1 if level == 0 else 3 if level == 1 else 6


cdef uint64_t kind_of(const int32_t* prompt, Py_ssize_t n) noexcept nogil:
    """Hashes of a prompt's beginnings, the shortest in the lowest bits; 0: it is too short.

    Collisions only affect which places come first, so they need no salt.
    """
    cdef uint64_t kind = 0
    cdef int level
    for level in range(KIN_LEVELS if n >= KIN_LEAST else 0):
        kind |= xxh64(prompt, <int>min(n, KIN_LEAST << level), level, 0) >> (64 - KIN_BITS) << (
            KIN_BITS * level
        )
    return kind


cdef inline int kin_of(uint64_t kind, uint64_t other) noexcept nogil:
    """How many of the beginnings agree, the shortest first."""
    cdef int level = 0
    if kind == 0 or other == 0:
        return 0
    kind ^= other
    while level < KIN_LEVELS and kind & ((1 << KIN_BITS) - 1) == 0:
        kind >>= KIN_BITS
        level += 1
    return level


cdef class StoreRing:
    """Text that requests share, bounded by ``capacity`` codes of CODE_BYTES each.

    Codes are tokens, and a separator per document.
    """

    cdef PyThread_type_lock lock
    cdef uint64_t* kinds        # the memory of all these arrays begins here
    cdef int32_t* ring
    cdef uint32_t* heads[RING_LEVELS]
    cdef uint32_t* links[RING_LEVELS]
    cdef readonly uint64_t capacity     # in codes; 0: closed
    cdef readonly uint64_t written      # codes ever written, which is the next one's position
    cdef uint64_t oldest        # position of the oldest code that may be read
    cdef uint64_t owner         # stream of the last code; 0: no stream continues there
    cdef uint64_t owners        # number of streams so far, not under the lock
    cdef int32_t tail[TAIL]     # the last tokens of the last document, newest last
    cdef int have               # number of tokens in ``tail``
    cdef uint64_t salt
    cdef int64_t tokens         # number of tokens that may be read
    cdef int64_t ever, look_ups, hits, accepted     # counts, see ``counts``
    cdef readonly int32_t largest_id    # largest token id ever written, or -1
    cdef uint64_t clears        # how often all text was made impossible to find
    cdef int64_t held           # codes and places accessed since the lock was taken
    cdef readonly int64_t most_operations   # the maximum of that

    def __cinit__(self, int64_t capacity):
        cdef int level
        if not LEAST_CODES <= capacity <= MAX_CODES:
            raise ValueError(f"capacity must be in {LEAST_CODES}..{MAX_CODES}, got {capacity}")
        self.lock = PyThread_allocate_lock()
        self.kinds = <uint64_t*>calloc(capacity + GRAIN, CODE_BYTES)
        if self.lock == NULL or self.kinds == NULL:
            raise MemoryError(f"a store of {capacity} codes")
        use_huge_pages(self.kinds, capacity * CODE_BYTES)
        self.ring = <int32_t*>(self.kinds + capacity // GRAIN + 1)
        for level in range(RING_LEVELS):
            self.heads[level] = <uint32_t*>self.ring + (2 * level + 1) * capacity
            self.links[level] = self.heads[level] + capacity
        self.capacity = capacity
        self.salt = process_salt()
        self.largest_id = -1

    def __dealloc__(self):
        free(self.kinds)
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    def close(self):
        """Free the text; nothing is found or added afterwards."""
        cdef void* memory
        with nogil:
            self.take()
            memory = self.kinds
            self.kinds = NULL
            self.capacity = 0
            self.forget()
            self.release()
            free(memory)

    def clear(self):
        """Remove the text at once; its memory is erased in pieces."""
        cdef uint64_t slot = 0
        cdef bint going = True
        with nogil:
            self.take()
            self.forget()
            self.release()
            while going:
                self.take()
                going = self.erase(slot)
                self.release()
                slot += COPIED

    def codes(self, int64_t at, int most=COPIED):
        """At most COPIED codes from a position, or from the oldest one: (position, int32 (n,))."""
        cdef int32_t[::1] into
        cdef int n = 0
        cdef uint64_t begin
        if at < 0 or not 0 < most <= COPIED:
            raise ValueError(f"cannot copy {most} codes from {at} on")
        found = np.empty(most, np.int32)
        into = found
        with nogil:
            self.take()
            begin = min(max(<uint64_t>at, self.oldest), self.written)
            while n < most and begin + n < self.written:
                into[n] = self.ring[(begin + n) % self.capacity]
                n += 1
            self.held += n
            self.release()
        return begin, found[:n]

    def counts(self):
        """(tokens, tokens ever, look-ups, look-ups that found a place, accepted tokens)."""
        return self.tokens, self.ever, self.look_ups, self.hits, self.accepted

    def count_on(self, counts):
        """Continue the counts of a saved store: tokens ever, look-ups, hits, accepted."""
        self.ever, self.look_ups, self.hits, self.accepted = counts

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(StoreRing) + self.capacity * CODE_BYTES

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken. No stream may be used meanwhile."""
        cdef uint64_t at, tokens = 0
        cdef int level
        cdef int32_t code
        self.take()
        try:
            assert self.written - self.oldest <= self.capacity, "more codes than fit"
            assert 0 <= self.have <= TAIL
            for at in range(self.oldest, self.written):
                code = self.ring[at % self.capacity]
                assert 0 <= code, f"code {code} at {at}"
                tokens += code != SEPARATOR
            assert tokens == <uint64_t>self.tokens, f"{tokens} tokens, {self.tokens} counted"
            for at in range(self.written, self.oldest + self.capacity):
                assert self.ring[at % self.capacity] == 0, "text that was cleared"
            for level in range(self.have):
                at = self.written - 1 - level
                if at >= self.oldest and level < self.have:
                    assert self.ring[at % self.capacity] == self.tail[TAIL - 1 - level], "tail"
        finally:
            self.release()

    cdef void take(self) noexcept nogil:
        PyThread_acquire_lock(self.lock, WAIT_LOCK)
        self.held = 0

    cdef void release(self) noexcept nogil:
        self.most_operations = max(self.most_operations, self.held)
        PyThread_release_lock(self.lock)

    cdef void forget(self) noexcept nogil:
        """Make all text impossible to find. Under the lock."""
        self.oldest = self.written
        self.owner = 0
        self.tokens = 0
        self.have = 0
        self.clears += 1

    cdef bint erase(self, uint64_t slot) noexcept nogil:
        """Erase slots from ``slot`` on that hold no text; whether more follow. Under the lock."""
        cdef uint64_t i, kept = self.written - self.oldest, behind
        for i in range(slot, min(slot + COPIED, self.capacity)):
            behind = (self.written + self.capacity - i) % self.capacity  # codes since, 0: all
            if behind == 0 and kept < self.capacity or behind > kept:
                self.ring[i] = 0
                self.kinds[i // GRAIN] = 0
            self.held += 1
        return slot + COPIED < self.capacity

    cdef uint32_t bucket(self, int level, const int32_t* end) noexcept nogil:
        """The head of the places after the last tokens before ``end``."""
        cdef int n = length_of(level)
        return <uint32_t>((xxh64(end - n, n, n, self.salt) >> 32) * self.capacity >> 32)

    cdef void put(self, int32_t code, bint found, uint64_t kind) noexcept nogil:
        """Write a code. ``found``: enter its place in the tables. Under the lock."""
        cdef uint64_t slot = self.written % self.capacity
        if found:
            self.place()
        if self.written - self.oldest == self.capacity:
            self.tokens -= self.ring[slot] != SEPARATOR
            self.oldest += 1
        self.ring[slot] = code
        self.kinds[slot // GRAIN] = kind
        self.written += 1
        self.held += 1
        if code == SEPARATOR:
            self.have = 0
            return
        self.tokens += 1
        self.largest_id = max(self.largest_id, code)
        memmove(self.tail, self.tail + 1, (TAIL - 1) * sizeof(int32_t))
        self.tail[TAIL - 1] = code
        self.have = min(self.have + 1, <int>TAIL)

    cdef void place(self) noexcept nogil:
        """Enter the next code's place by the tokens before it. Under the lock."""
        cdef uint64_t slot = self.written % self.capacity
        cdef uint32_t bucket
        cdef int level
        for level in range(RING_LEVELS):
            if self.have < length_of(level):
                return
            bucket = self.bucket(level, self.tail + TAIL)
            self.links[level][slot] = self.heads[level][bucket]
            self.heads[level][bucket] = <uint32_t>self.written
            self.held += 1

    cdef void end(self, uint64_t owner) noexcept nogil:
        """Let no text be appended to that of a stream."""
        self.take()
        if self.owner == owner:
            self.owner = 0
        self.release()

    cdef void add(
        self, uint64_t owner, const int32_t* before, int have, const int32_t* tokens, int n,
        Own* own, uint64_t kind, uint64_t clears
    ) noexcept nogil:
        """Add tokens of a stream: after its last ones, or, if others intervened, as a document.

        Such a document begins with the stream's ``have`` last tokens, ``before``, so that they find
        the text that follows. ``n`` is at most BATCH; ``own``, the ranges of the stream's text, is
        updated. Nothing is added if the text was cleared since ``clears``.
        """
        cdef int i
        self.take()
        if self.capacity and clears == self.clears:
            if owner != self.owner:
                self.put(SEPARATOR, False, kind)
                if own.n == 0 or own.ranges[own.last].end + 1 != self.written:
                    own.last = (own.last + 1) % OWN_RANGES
                    own.n = min(own.n + 1, <int>OWN_RANGES)
                    own.ranges[own.last].begin = self.written
                for i in range(have):
                    self.put(before[i], False, kind)
                self.owner = owner
            for i in range(n):
                self.put(tokens[i], True, kind)
            self.ever += n
            own.ranges[own.last].end = self.written
        self.release()

    cdef int agreement(
        self, uint64_t at, uint64_t slot, const int32_t* end, Py_ssize_t have
    ) noexcept nogil:
        """How many of a context's last tokens precede a place, at most RING_DEEPEST."""
        cdef int i = 0, most = <int>min(<uint64_t>min(have, RING_DEEPEST), at - self.oldest)
        while i < most:
            slot = (slot if slot else self.capacity) - 1
            if self.ring[slot] != end[-1 - i] or self.ring[slot] == SEPARATOR:
                break
            i += 1
        self.held += i + 1
        return i

    cdef int walk(
        self, int level, uint32_t bucket, const int32_t* end, Py_ssize_t have, const Own* own,
        uint64_t kind, Found* into, int n, int most
    ) noexcept nogil:
        """Add a bucket's latest places to ``n`` that are known; return the new number.

        Places that agree for as many tokens as the next level's contexts have are found there.
        """
        cdef int steps = 0, length, i, kin, least = length_of(level)
        cdef int nearest = KIN_LEVELS if kind else 0
        cdef int[KIN_LEVELS + 1] walked = [0, 0, 0, 0, 0]   # places compared, by kin
        cdef int beyond = RING_DEEPEST + 1 if level == RING_LEVELS - 1 else length_of(level + 1)
        cdef uint32_t next = self.heads[level][bucket]
        cdef uint64_t at, slot, age, before = 0, written_slot = self.written % self.capacity
        while steps < STEPS:
            steps += 1
            age = <uint32_t>(<uint32_t>self.written - next)
            if age <= before or age > self.written - self.oldest:
                break
            before = age
            at = self.written - age
            slot = (written_slot if age <= written_slot else written_slot + self.capacity) - age
            next = self.links[level][slot]
            if is_own(own, at):
                continue
            kin = kin_of(kind, self.kinds[((slot if slot else self.capacity) - 1) // GRAIN])
            if walked[kin] == WALK:
                continue
            length = self.agreement(at, slot, end, have)
            if length < least:
                continue
            walked[kin] += 1
            if length < beyond and (n < most or is_behind(&into[n - 1], length, kin)):
                n = min(n + 1, most)
                i = n - 1
                while i and is_behind(&into[i - 1], length, kin):
                    into[i] = into[i - 1]
                    i -= 1
                into[i].at, into[i].length, into[i].kin = at, length, kin
            if walked[nearest] == WALK or n == most and into[n - 1].length == RING_DEEPEST:
                break
        self.held += steps
        return n

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, const Own* own, uint64_t kind, Found* into,
        int most
    ) noexcept nogil:
        """Places after a context: the longest agreement first, then the nearest kin, the latest."""
        cdef int level, n = 0
        cdef uint32_t buckets[RING_LEVELS]
        self.take()
        if self.capacity:
            for level in range(RING_LEVELS):
                if have >= length_of(level):
                    buckets[level] = self.bucket(level, end)
                    prefetch_line(&self.heads[level][buckets[level]])
            for level in range(RING_LEVELS - 1, -1, -1):
                if have >= length_of(level) and n < most:
                    n = self.walk(level, buckets[level], end, have, own, kind, into, n, most)
            self.look_ups += 1
            self.hits += n > 0
        self.release()
        return n

    cdef int read(self, uint64_t at, int32_t* into, int most, int32_t limit) noexcept nogil:
        """Copy tokens below ``limit`` from a position up to a document's end; how many."""
        cdef int n = 0
        cdef uint64_t slot
        self.take()
        if self.oldest <= at < self.written:
            slot = at % self.capacity
            most = <int>min(<uint64_t>most, self.written - at)
            while n < most and self.ring[slot] < limit:
                into[n] = self.ring[slot]
                n += 1
                slot = slot + 1 if slot + 1 < self.capacity else 0
        self.held += n
        self.release()
        return n

    cdef void credit(self, int64_t n) noexcept nogil:
        """Count accepted tokens."""
        self.take()
        self.accepted += n
        self.release()


cdef class StoreStream(StoreSource):
    """One request's access to a namespace's ring; token ids from ``limit`` on are not read."""

    cdef StoreRing ring
    cdef uint64_t owner
    cdef int32_t limit              # exclusive upper bound of the token ids that are read
    cdef int32_t before[OVERLAP]    # the last tokens that were added
    cdef int have                   # number of tokens in ``before``
    cdef int32_t pending[BATCH]     # tokens that are not added yet
    cdef int pending_n
    cdef uint64_t clears            # the ring's when the document began
    cdef Own own
    cdef uint64_t kind              # of the request, by its prompt
    cdef bint busy                  # tokens are added without the GIL

    def __cinit__(self, StoreRing ring not None, int64_t limit=0):
        if not 0 <= limit < SEPARATOR:
            raise ValueError(f"limit must be in 0..{SEPARATOR - 1}, got {limit}")
        self.ring = ring
        self.limit = <int32_t>limit if limit else SEPARATOR
        ring.owners += 1  # under the GIL
        self.owner = ring.owners
        self.own.last = -1
        self.clears = ring.clears

    def begin(self, prompt):
        """Set the prompt, int32 (n,): text of requests with the same beginning comes first."""
        cdef Py_ssize_t n = 0
        cdef const int32_t* tokens = tokens_of(prompt, &n, "prompt")
        self.kind = kind_of(tokens, n)

    def append(self, tokens):
        """Add tokens, int32 (n,), in batches of BATCH. After an error nothing was added."""
        cdef Py_ssize_t bad, n = 0
        cdef const int32_t* new = tokens_of(tokens, &n)
        bad = index_of(new, <int>n, SEPARATOR)
        if bad != NONE:
            raise ValueError(f"token ids must be < {SEPARATOR}, got one at index {bad}")
        self.append_documents(tokens)

    def append_documents(self, codes):
        """Add documents, int32 (n,): token ids, with BORDER before each document.

        The last document continues with what is appended next. Empty documents add nothing.
        """
        cdef Py_ssize_t n = 0
        cdef const int32_t* new = tokens_of(codes, &n, "codes")
        check_ids(new, n)
        self.idle()
        if n < BATCH:
            self.put(new, n)
            return
        self.busy = True
        with nogil:
            self.put(new, n)
        self.busy = False

    def follow(self, StoreStream earlier not None):
        """Continue the text of an earlier stream of the same ring, before anything is added.

        Its text is not found either, and the first tokens added follow its last ones.
        """
        if earlier.ring is not self.ring:
            raise ValueError("the earlier stream is of another ring")
        self.own = earlier.own
        self.before = earlier.before
        self.have = earlier.have
        self.clears = earlier.clears

    def cleared(self):
        """Whether the ring was cleared since the document began."""
        return self.clears != self.ring.clears

    def publish(self):
        """Add the pending tokens; the document may continue."""
        self.idle()
        self.flush()

    def finish(self):
        """Add the pending tokens and end the document."""
        self.close()
        self.end_document()

    def close(self):
        """Add the pending tokens and end the document, which a later stream may ``follow``."""
        self.idle()
        self.flush()
        self.ring.end(self.owner)

    def end(self):
        """End the document without adding the pending tokens."""
        self.end_document()

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        assert 0 <= self.pending_n <= BATCH and 0 <= self.have <= OVERLAP
        assert 0 <= self.own.n <= OWN_RANGES and self.own.last < OWN_RANGES

    cdef int idle(self) except -1:
        if self.busy:
            raise RuntimeError("this stream is being used by another thread")
        return 0

    cdef void put(self, const int32_t* codes, Py_ssize_t n) noexcept nogil:
        cdef Py_ssize_t i
        for i in range(n):
            if codes[i] == SEPARATOR:
                self.flush()
                self.end_document()
                continue
            self.pending[self.pending_n] = codes[i]
            self.pending_n += 1
            if self.pending_n == BATCH:
                self.flush()

    cdef void flush(self) noexcept nogil:
        """Add the pending tokens."""
        cdef int kept, n = self.pending_n
        if n == 0:
            return
        self.ring.add(
            self.owner, self.before, self.have, self.pending, n, &self.own, self.kind,
            self.clears,
        )
        kept = max(0, min(self.have, <int>OVERLAP - n))
        memmove(self.before, self.before + self.have - kept, kept * sizeof(int32_t))
        self.have = min(kept + n, <int>OVERLAP)
        memcpy(
            self.before + kept, self.pending + n - (self.have - kept),
            (self.have - kept) * sizeof(int32_t)
        )
        self.pending_n = 0

    cdef void end_document(self) noexcept nogil:
        """End the document and drop the pending tokens."""
        self.pending_n = self.have = 0
        self.clears = self.ring.clears
        self.ring.end(self.owner)

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil:
        return self.ring.look(end, have, &self.own, self.kind, into, most)

    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil:
        return self.ring.read(at, into, most, self.limit)

    cdef void credit(self, int64_t at, int n) noexcept nogil:
        self.ring.credit(n)

    cdef bint earlier(self, int64_t at) noexcept nogil:
        return True
