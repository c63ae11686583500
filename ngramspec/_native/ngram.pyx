"""N-gram frequency table with backoff (akunu's n-gram chapter; here counts can be forgotten).

    slots     open addressing: one ``Context`` for each context of all orders
    buckets   one per context and distinct count, doubly linked, highest count first
    entries   a continuation, doubly linked inside its bucket, most recent first
    index     open addressing on (context key, token) -> entry

Invariant: after any call the table equals one built from the tokens now in the window.
Costs: appending a token O(order), forgetting one O(order), the best continuation O(1), a drafted
token O(order); amortised over growth, whatever the context's length. Memory: 24 bytes per context
(at 1/3 to 2/3 load) and, for contexts with several continuations, 20 per continuation, 24 per
distinct count and the index's 5 to 11.

A context is identified by its XXH64 only. Two contexts with the same 64-bit hash share their
counts. That gives a worse draft, never a wrong text, since the target verifies every token.

One thread at a time: an operation runs without the GIL, and a second thread gets a RuntimeError.
"""

from libc.stdint cimport INT32_MAX, int32_t, int8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memmove

import numpy as np

from ngramspec._native.common cimport (
    MAX_TOKENS, NONE, TokenStructure, gamma_of, process_salt, reserve, scatter, tokens_of,
    xxh64,
)

cdef enum:
    TIES = 64  # maximum number of newer ties among which a decremented entry is placed exactly
    MIN_ORDER = 1
    MAX_ORDER = 8
    MAX_NEW = 3 * (MAX_ORDER - 1)  # per order: a bucket to forget, two and two entries to count

cdef struct Bucket:     # 24 bytes
    uint64_t key        # the context it belongs to
    int32_t count       # count of each of its entries, >= 1; 0 in the free list
    int32_t first       # the most recent entry
    int32_t up          # bucket of the same context with the next higher count
    int32_t down        # with the next lower count; links the free list

cdef struct NGramEntry:      # 20 bytes
    int32_t token
    int32_t bucket
    int32_t last        # position of the last occurrence
    int32_t prev
    int32_t next        # links the free list

cdef struct CountOrder:
    NGramEntry* entries
    Py_ssize_t entry_cap, entry_top, entry_n
    int32_t entry_free
    Bucket* buckets
    Py_ssize_t bucket_cap, bucket_top, bucket_n
    int32_t bucket_free
    int32_t* index      # entry + 1, or 0
    Py_ssize_t index_cap

cdef struct Context:    # 24 bytes; a slot of the table, empty while total == 0
    uint64_t key        # XXH64(context, seed = order), salted
    int32_t token       # the most frequent continuation
    int32_t top         # first bucket; NONE while ``token`` is the only continuation
    int32_t tail        # last bucket; with no bucket, position of the last occurrence
    int32_t total       # sum of all counts

# The index: linear probing. Erasing shifts entries back, so there are no tombstones. The contexts'
# keys contain the salt.


cdef inline Py_ssize_t home(const CountOrder* o, uint64_t key, int32_t token) noexcept nogil:
    return <Py_ssize_t>(scatter(key ^ <uint64_t>token) & <uint64_t>(o.index_cap - 1))


cdef inline Py_ssize_t home_of(const CountOrder* o, int32_t e) noexcept nogil:
    """The place of the index where the search for an entry begins."""
    return home(o, o.buckets[o.entries[e].bucket].key, o.entries[e].token)


# Buckets and entries.

cdef inline void connect(CountOrder* o, Context* c, int32_t up, int32_t down) noexcept nogil:
    """Make two buckets neighbours; NONE: the other one is the context's first or last."""
    if up != NONE:
        o.buckets[up].down = down
    else:
        c.top = down
    if down != NONE:
        o.buckets[down].up = up
    else:
        c.tail = up


cdef int32_t take_bucket(
    CountOrder* o, Context* c, int32_t count, int32_t up, int32_t down
) noexcept nogil:
    """A new empty bucket between ``up`` and ``down``, either of which may be NONE."""
    cdef int32_t b = o.bucket_free
    if b != NONE:
        o.bucket_free = o.buckets[b].down
    else:
        b = <int32_t>o.bucket_top
        o.bucket_top += 1
    o.bucket_n += 1
    o.buckets[b].key = c.key
    o.buckets[b].count = count
    o.buckets[b].first = NONE
    connect(o, c, up, b)
    connect(o, c, b, down)
    return b


# Contexts: a single continuation is kept in the context itself, several in the lists.

cdef void count_once(CountOrder* o, Context* c, int32_t token, int32_t position) noexcept nogil:
    """Count ``token`` once more after ``c``, with room for two more buckets and entries."""
    cdef int32_t e, first_seen
    if c.total == 0 or (c.top == NONE and c.token == token):
        c.token = token
        c.top = NONE
        c.tail = position
    elif c.top == NONE:  # a second continuation: both move to the lists
        first_seen = c.tail
        c.tail = NONE
        add(o, c, c.token, c.total, first_seen)
        add(o, c, token, 1, position)
    else:
        e = find_entry(o, c.key, token)
        if e == NONE:
            add(o, c, token, 1, position)
        else:
            o.entries[e].last = position
            move(o, c, e, 1)
    c.total += 1
    if c.top != NONE:
        c.token = o.entries[o.buckets[c.top].first].token


cdef inline void index_put(CountOrder* o, int32_t e) noexcept nogil:
    cdef Py_ssize_t i = home_of(o, e)
    while o.index[i] != 0:
        i = (i + 1) & (o.index_cap - 1)
    o.index[i] = e + 1


cdef void index_erase(CountOrder* o, int32_t e) noexcept nogil:
    cdef Py_ssize_t mask = o.index_cap - 1, i = home_of(o, e), j, h
    while o.index[i] != e + 1:
        i = (i + 1) & mask
    j = i
    while True:
        j = (j + 1) & mask
        if o.index[j] == 0:
            break
        h = home_of(o, o.index[j] - 1)
        if ((j - h) & mask) >= ((j - i) & mask):  # the entry may move into the gap
            o.index[i] = o.index[j]
            i = j
    o.index[i] = 0


cdef int32_t find_entry(const CountOrder* o, uint64_t key, int32_t token) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t e
    if o.index_cap == 0:
        return NONE
    i = home(o, key, token)
    while o.index[i] != 0:
        e = o.index[i] - 1
        if o.entries[e].token == token and o.buckets[o.entries[e].bucket].key == key:
            return e
        i = (i + 1) & (o.index_cap - 1)
    return NONE


cdef int reserve_more(CountOrder* o, Py_ssize_t more) noexcept nogil:
    """Make room for ``more`` entries and buckets: 0, or -1 without memory and nothing changed."""
    cdef int32_t* old = o.index
    cdef int32_t* grown
    cdef Py_ssize_t i, cap = o.index_cap, old_cap = o.index_cap
    if o.entry_top + more > INT32_MAX or o.bucket_top + more > INT32_MAX:
        return -1
    if reserve(<void**>&o.entries, &o.entry_cap, o.entry_top + more, sizeof(NGramEntry)) < 0:
        return -1
    if reserve(<void**>&o.buckets, &o.bucket_cap, o.bucket_top + more, sizeof(Bucket)) < 0:
        return -1
    if 4 * (o.entry_n + more) <= 3 * cap:
        return 0
    cap = 64 if cap == 0 else 2 * cap
    grown = <int32_t*>calloc(<size_t>cap, sizeof(int32_t))
    if grown == NULL:
        return -1
    o.index = grown
    o.index_cap = cap
    for i in range(old_cap):
        if old[i] != 0:
            index_put(o, old[i] - 1)
    free(old)
    return 0


cdef void drop_bucket(CountOrder* o, Context* c, int32_t b) noexcept nogil:
    connect(o, c, o.buckets[b].up, o.buckets[b].down)
    o.buckets[b].count = 0
    o.buckets[b].down = o.bucket_free
    o.bucket_free = b
    o.bucket_n -= 1


cdef inline void drop_entry(CountOrder* o, int32_t e) noexcept nogil:
    o.entries[e].bucket = NONE
    o.entries[e].next = o.entry_free
    o.entry_free = e
    o.entry_n -= 1


cdef inline void join(CountOrder* o, int32_t b, int32_t prev, int32_t next) noexcept nogil:
    """Make two entries of a bucket neighbours; NONE: the other one is its first or last."""
    if prev != NONE:
        o.entries[prev].next = next
    else:
        o.buckets[b].first = next
    if next != NONE:
        o.entries[next].prev = prev


cdef void link(CountOrder* o, int32_t e, int32_t b) noexcept nogil:
    """Put an entry into a bucket, after those that occurred later."""
    cdef int32_t prev = NONE
    cdef int32_t next = o.buckets[b].first
    cdef int steps = 0
    while next != NONE and steps < TIES and o.entries[next].last > o.entries[e].last:
        prev = next
        next = o.entries[next].next
        steps += 1
    o.entries[e].bucket = b
    join(o, b, prev, e)
    join(o, b, e, next)


cdef void unlink(CountOrder* o, int32_t e) noexcept nogil:
    join(o, o.entries[e].bucket, o.entries[e].prev, o.entries[e].next)


cdef void add(
    CountOrder* o, Context* c, int32_t token, int32_t count, int32_t position
) noexcept nogil:
    """A new continuation whose count is the context's lowest, or its only one."""
    cdef int32_t e = o.entry_free, b = c.tail
    if e != NONE:
        o.entry_free = o.entries[e].next
    else:
        e = <int32_t>o.entry_top
        o.entry_top += 1
    o.entry_n += 1
    o.entries[e].token, o.entries[e].last = token, position
    if b == NONE or o.buckets[b].count != count:
        b = take_bucket(o, c, count, c.tail, NONE)
    link(o, e, b)
    index_put(o, e)


cdef void move(CountOrder* o, Context* c, int32_t e, int step) noexcept nogil:
    """Move an entry to the bucket one count higher (``step`` = 1) or lower (-1)."""
    cdef int32_t b = o.entries[e].bucket
    cdef int32_t count = o.buckets[b].count + step
    cdef int32_t to = o.buckets[b].up if step > 0 else o.buckets[b].down
    unlink(o, e)
    if to == NONE or o.buckets[to].count != count:
        if o.buckets[b].first == NONE:  # it was the only entry: its bucket is reused
            o.buckets[b].count = count
            to = b
        elif step > 0:
            to = take_bucket(o, c, count, to, b)
        else:
            to = take_bucket(o, c, count, b, to)
    link(o, e, to)
    if o.buckets[b].first == NONE:
        drop_bucket(o, c, b)


cdef void uncount(CountOrder* o, Context* c, int32_t token) noexcept nogil:
    """Remove one count of ``token``, which must have one, with room for one more bucket."""
    cdef int32_t e, b, last
    c.total -= 1
    if c.top == NONE:
        return
    e = find_entry(o, c.key, token)
    b = o.entries[e].bucket
    if o.buckets[b].count > 1:
        move(o, c, e, -1)
    else:
        index_erase(o, e)
        unlink(o, e)
        if o.buckets[b].first == NONE:
            drop_bucket(o, c, b)
        drop_entry(o, e)
    e = o.buckets[c.top].first
    c.token = o.entries[e].token
    if c.top == c.tail and o.entries[e].next == NONE:  # one continuation is left
        index_erase(o, e)
        last = o.entries[e].last
        drop_entry(o, e)
        drop_bucket(o, c, c.top)
        c.tail = last


cdef class NGramTable(TokenStructure):
    """Counts of what followed each context of 1..order-1 tokens; with order 1, of all tokens.

    Args:
        order: the longest n-gram, 1..8; contexts have one token less. The only context of order 1
            is the empty one: unigrams, the fallback of Leviathan et al. 2023, section 3.6.
        window: count only the last ``window`` tokens (>= order), or None for all.
    """

    cdef readonly int order
    cdef int shortest               # tokens of the shortest context
    cdef Py_ssize_t width           # the window's length; 0: no window
    cdef int32_t tail[8]            # the last order - 1 tokens, oldest first
    cdef int tail_n
    cdef int32_t* ring              # the window's tokens, at position modulo width
    cdef Context* slots             # open addressing, linear probing, at most 2/3 full
    cdef Py_ssize_t slot_cap, slot_n
    cdef CountOrder counts
    cdef uint64_t salt

    def __cinit__(self, int order=4, window=None):
        self.name = "n-gram table"
        if not MIN_ORDER <= order <= MAX_ORDER:
            raise ValueError(f"order must be in {MIN_ORDER}..{MAX_ORDER}, got {order}")
        if window is not None and not order <= window <= MAX_TOKENS:
            raise ValueError(f"window must be in {order} (the order)..{MAX_TOKENS}, got {window}")
        self.salt = process_salt()
        self.order, self.shortest = order, min(order - 1, 1)
        self.width = 0 if window is None else window
        self.counts.entry_free = self.counts.bucket_free = NONE
        self.slot_cap = 64
        self.slots = <Context*>calloc(64, sizeof(Context))
        if self.width:
            self.ring = <int32_t*>malloc(self.width * sizeof(int32_t))
        if self.slots == NULL or (self.width and self.ring == NULL):
            raise MemoryError("n-gram table")

    def __dealloc__(self):
        free(self.slots)
        free(self.ring)
        free(self.counts.entries)
        free(self.counts.buckets)
        free(self.counts.index)

    def __len__(self):
        """Tokens now counted: all, or those in the window."""
        return min(self.n, self.width) if self.width else self.n

    def draft(self, Py_ssize_t gamma, prefix=None):
        """Draft a chain of at most ``gamma`` most frequent continuations, each fed back as context.

        ``prefix``, int32, is taken to follow the committed tokens. Returned are the tokens, int32,
        and the n-gram orders that predicted them, int8, both (n,): empty if even the last token
        alone is unknown as a context.
        """
        cdef const int32_t* start = NULL
        cdef Py_ssize_t n = 0
        cdef int drafted, wanted = gamma_of(gamma)
        if prefix is not None:
            start = tokens_of(prefix, &n, "prefix")
        tokens = np.empty(wanted, np.int32)
        orders = np.empty(wanted, np.int8)
        if wanted == 0:
            return tokens, orders
        cdef int32_t[::1] out = tokens
        cdef int8_t[::1] out_orders = orders
        self.enter()
        with nogil:
            drafted = self.chain(start, n, &out[0], &out_orders[0], wanted)
        self.busy = False
        return tokens[:drafted], orders[:drafted]

    def top_k(self, context, int k):
        """The ``k`` most frequent continuations as (token, count), by count, then recency. O(k)."""
        cdef Context* c
        cdef int32_t b, e
        found: list[tuple[int, int]] = []
        if k < 1:
            raise ValueError(f"k must be >= 1, got {k}")
        c = self.context_of(context)
        if c == NULL:
            return found
        if c.top == NONE:
            return [(c.token, c.total)]
        self.enter()  # making tuples may run the garbage collector, and so another thread
        try:
            b, e = c.top, self.counts.buckets[c.top].first
            while b != NONE and len(found) < k:
                found.append((self.counts.entries[e].token, self.counts.buckets[b].count))
                e = self.counts.entries[e].next
                if e == NONE:
                    b = self.counts.buckets[b].down
                    e = self.counts.buckets[b].first if b != NONE else NONE
        finally:
            self.busy = False
        return found

    def total(self, context):
        """How often anything followed ``context``."""
        cdef Context* c = self.context_of(context)
        return 0 if c == NULL else c.total

    def sizeof(self):
        """Bytes allocated."""
        return (
            sizeof(NGramTable)
            + self.slot_cap * sizeof(Context)
            + self.width * sizeof(int32_t)
            + self.counts.entry_cap * sizeof(NGramEntry)
            + self.counts.bucket_cap * sizeof(Bucket)
            + self.counts.index_cap * sizeof(int32_t)
        )

    def check_integrity(self):
        """Walk every list and raise an AssertionError if an invariant of the table is broken.

        Returned is the largest number of places inspected to find an item; 1 without collisions.
        """
        cdef const CountOrder* o = &self.counts
        cdef Py_ssize_t i, used = 0, entries = 0, buckets = 0, probe = 0
        cdef int32_t b, e, prev, count
        cdef Context* c
        self.idle()
        for i in range(self.slot_cap):
            c = &self.slots[i]
            if c.total == 0:
                continue
            used += 1
            assert self.find(c.key) == i, "a context cannot be found again"
            probe = max(probe, <Py_ssize_t>(<uint64_t>i - c.key & <uint64_t>(self.slot_cap - 1)))
            if c.top == NONE:
                continue
            total, b, count = 0, c.top, 0
            assert c.token == o.entries[o.buckets[b].first].token
            while b != NONE:
                buckets += 1
                assert o.buckets[b].key == c.key and o.buckets[b].first != NONE
                assert count == 0 or o.buckets[b].count < count, "buckets out of order"
                count = o.buckets[b].count
                assert o.buckets[b].down != NONE or b == c.tail
                e, prev = o.buckets[b].first, NONE
                while e != NONE:
                    entries += 1
                    total += count
                    assert o.entries[e].bucket == b and o.entries[e].prev == prev
                    assert find_entry(o, c.key, o.entries[e].token) == e
                    prev, e = e, o.entries[e].next
                b = o.buckets[b].down
            assert total == c.total, "counts do not add up"
        assert used == self.slot_n and 3 * used <= 2 * self.slot_cap
        assert entries == o.entry_n and buckets == o.bucket_n
        assert o.entry_top <= o.entry_cap and o.bucket_top <= o.bucket_cap, "past their arrays"
        for i in range(o.index_cap):
            if o.index[i]:
                probe = max(probe, (i - home_of(o, o.index[i] - 1)) & (o.index_cap - 1))
        return probe + 1

    cdef Context* context_of(self, object context) except? NULL:
        cdef Py_ssize_t slot, n = 0
        cdef const int32_t* tokens = tokens_of(context, &n, "context")
        if not self.shortest <= n < self.order:
            raise ValueError(f"context must have {self.shortest}..{self.order - 1} tokens, got {n}")
        self.idle()
        slot = self.find(xxh64(tokens, <int>n, n + 1, self.salt))
        return &self.slots[slot] if self.slots[slot].total else NULL

    cdef Py_ssize_t find(self, uint64_t key) noexcept nogil:
        """The slot of a context, or the empty slot where it would go."""
        cdef Py_ssize_t mask = self.slot_cap - 1
        cdef Py_ssize_t i = <Py_ssize_t>(key & <uint64_t>mask)
        while self.slots[i].total != 0 and self.slots[i].key != key:
            i = (i + 1) & mask
        return i

    cdef int append(self, int32_t token) noexcept nogil:
        cdef Py_ssize_t slot
        cdef uint64_t key
        cdef int m
        if self.grow() < 0 or reserve_more(&self.counts, MAX_NEW) < 0:
            return -1
        if self.width and self.n >= self.width:
            self.forget()
        for m in range(self.shortest, self.tail_n + 1):
            key = xxh64(self.tail + self.tail_n - m, m, m + 1, self.salt)
            slot = self.find(key)
            if self.slots[slot].total == 0:
                self.slots[slot].key = key
                self.slot_n += 1
            count_once(&self.counts, &self.slots[slot], token, <int32_t>self.n)
        if self.width:
            self.ring[self.n % self.width] = token
        self.tail_n = push(self.tail, self.tail_n, self.order - 1, token)
        return 0

    cdef void forget(self) noexcept nogil:
        """Remove every n-gram that begins with the oldest token of the full window."""
        cdef int32_t gram[MAX_ORDER]
        cdef Py_ssize_t slot
        cdef int m
        for m in range(self.order):
            gram[m] = self.ring[(self.n - self.width + m) % self.width]
        for m in range(self.shortest, self.order):
            slot = self.find(xxh64(gram, m, m + 1, self.salt))
            uncount(&self.counts, &self.slots[slot], gram[m])
            if self.slots[slot].total == 0:
                self.erase(slot)

    cdef void erase(self, Py_ssize_t slot) noexcept nogil:
        """Close the gap of an emptied slot by shifting later ones back."""
        cdef Py_ssize_t mask = self.slot_cap - 1
        cdef Py_ssize_t j = slot, home
        self.slot_n -= 1
        while True:
            j = (j + 1) & mask
            if self.slots[j].total == 0:
                break
            home = <Py_ssize_t>(self.slots[j].key & <uint64_t>mask)
            if ((j - home) & mask) >= ((j - slot) & mask):
                self.slots[slot] = self.slots[j]
                slot = j
        self.slots[slot].total = 0

    cdef int grow(self) noexcept nogil:
        """Keep the slots at most 2/3 full after the next token: 0, or -1 with nothing changed."""
        cdef Context* old = self.slots
        cdef Context* grown
        cdef Py_ssize_t i, old_cap = self.slot_cap
        if 3 * (self.slot_n + self.order) <= 2 * old_cap:
            return 0
        grown = <Context*>calloc(<size_t>(2 * old_cap), sizeof(Context))
        if grown == NULL:
            return -1
        self.slots = grown
        self.slot_cap = 2 * old_cap
        for i in range(old_cap):
            if old[i].total != 0:
                grown[self.find(old[i].key)] = old[i]
        free(old)
        return 0

    cdef int chain(
        self, const int32_t* prefix, Py_ssize_t n, int32_t* out, int8_t* orders, int gamma
    ) noexcept nogil:
        cdef int32_t context[MAX_ORDER]
        cdef int keep = self.order - 1
        cdef int have = self.tail_n, drafted = 0, m
        cdef Py_ssize_t slot, i
        memcpy(context, self.tail, have * sizeof(int32_t))
        for i in range(n - keep if n > keep else 0, n):
            have = push(context, have, keep, prefix[i])
        while drafted < gamma:
            for m in range(have, self.shortest - 1, -1):  # backs off to the longest known context
                slot = self.find(xxh64(context + have - m, m, m + 1, self.salt))
                if self.slots[slot].total != 0:
                    break
            else:
                break
            out[drafted] = self.slots[slot].token
            orders[drafted] = <int8_t>(m + 1)
            have = push(context, have, keep, out[drafted])
            drafted += 1
        return drafted


cdef inline int push(int32_t* context, int have, int keep, int32_t token) noexcept nogil:
    """Append to a context of at most ``keep`` tokens, dropping its oldest; the new length."""
    if keep == 0:
        return 0
    if have == keep:
        memmove(context, context + 1, (keep - 1) * sizeof(int32_t))
        have -= 1
    context[have] = token
    return have + 1
