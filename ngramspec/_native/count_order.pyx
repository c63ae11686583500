"""Counting continuations up and down; count_order.pxd has the structure and its invariants."""

from libc.stdint cimport INT32_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ngramspec._native.common cimport NONE, reserve
from ngramspec._native.xxh64 cimport scatter

cdef enum:
    TIES = 64  # maximum number of newer ties among which a decremented entry is placed exactly


cdef void count_order_init(CountOrder* o) noexcept nogil:
    memset(o, 0, sizeof(CountOrder))
    o.entry_free = o.bucket_free = NONE


cdef void count_order_free(CountOrder* o) noexcept nogil:
    free(o.entries)
    free(o.buckets)
    free(o.index)
    count_order_init(o)


cdef Py_ssize_t count_order_sizeof(const CountOrder* o) noexcept nogil:
    return (
        o.entry_cap * sizeof(Entry)
        + o.bucket_cap * sizeof(Bucket)
        + o.index_cap * sizeof(int32_t)
    )


# The index: linear probing. Erasing shifts entries back, so there are no tombstones. The contexts'
# keys contain the salt.

cdef inline Py_ssize_t home(const CountOrder* o, uint64_t key, int32_t token) noexcept nogil:
    return <Py_ssize_t>(scatter(key ^ <uint64_t>token) & <uint64_t>(o.index_cap - 1))


cdef inline void index_put(CountOrder* o, int32_t e) noexcept nogil:
    cdef Py_ssize_t i = home(o, o.buckets[o.entries[e].bucket].key, o.entries[e].token)
    while o.index[i] != 0:
        i = (i + 1) & (o.index_cap - 1)
    o.index[i] = e + 1


cdef void index_erase(CountOrder* o, int32_t e) noexcept nogil:
    cdef Py_ssize_t mask = o.index_cap - 1
    cdef Py_ssize_t i = home(o, o.buckets[o.entries[e].bucket].key, o.entries[e].token)
    cdef Py_ssize_t j, h
    cdef int32_t other
    while o.index[i] != e + 1:
        i = (i + 1) & mask
    j = i
    while True:
        j = (j + 1) & mask
        if o.index[j] == 0:
            break
        other = o.index[j] - 1
        h = home(o, o.buckets[o.entries[other].bucket].key, o.entries[other].token)
        if ((j - h) & mask) >= ((j - i) & mask):  # the entry may move into the gap
            o.index[i] = o.index[j]
            i = j
    o.index[i] = 0


cdef int32_t count_order_find(const CountOrder* o, uint64_t key, int32_t token) noexcept nogil:
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


cdef Py_ssize_t count_order_longest_probe(const CountOrder* o) noexcept nogil:
    """Largest number of index places inspected to find an entry; 1 without collisions."""
    cdef Py_ssize_t i, h, longest = 0
    cdef int32_t e
    for i in range(o.index_cap):
        if o.index[i] != 0:
            e = o.index[i] - 1
            h = home(o, o.buckets[o.entries[e].bucket].key, o.entries[e].token)
            longest = max(longest, ((i - h) & (o.index_cap - 1)) + 1)
    return longest


cdef int count_order_reserve(CountOrder* o, Py_ssize_t more) noexcept nogil:
    """Make room for ``more`` entries and buckets: 0, or -1 without memory and nothing changed.

    Counting afterwards cannot fail half-way.
    """
    cdef int32_t* old = o.index
    cdef int32_t* grown
    cdef Py_ssize_t i, cap = o.index_cap, old_cap = o.index_cap
    if o.entry_top + more > INT32_MAX or o.bucket_top + more > INT32_MAX:
        return -1
    if reserve(<void**>&o.entries, &o.entry_cap, o.entry_top + more, sizeof(Entry)) < 0:
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


# Buckets and entries.

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
    o.buckets[b].up = up
    o.buckets[b].down = down
    if up != NONE:
        o.buckets[up].down = b
    else:
        c.top = b
    if down != NONE:
        o.buckets[down].up = b
    else:
        c.tail = b
    return b


cdef void drop_bucket(CountOrder* o, Context* c, int32_t b) noexcept nogil:
    cdef int32_t up = o.buckets[b].up
    cdef int32_t down = o.buckets[b].down
    if up != NONE:
        o.buckets[up].down = down
    else:
        c.top = down
    if down != NONE:
        o.buckets[down].up = up
    else:
        c.tail = up
    o.buckets[b].count = 0
    o.buckets[b].down = o.bucket_free
    o.bucket_free = b
    o.bucket_n -= 1


cdef int32_t take_entry(CountOrder* o, int32_t token, int32_t position) noexcept nogil:
    cdef int32_t e = o.entry_free
    if e != NONE:
        o.entry_free = o.entries[e].next
    else:
        e = <int32_t>o.entry_top
        o.entry_top += 1
    o.entry_n += 1
    o.entries[e].token = token
    o.entries[e].last = position
    return e


cdef inline void drop_entry(CountOrder* o, int32_t e) noexcept nogil:
    o.entries[e].bucket = NONE
    o.entries[e].next = o.entry_free
    o.entry_free = e
    o.entry_n -= 1


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
    o.entries[e].prev = prev
    o.entries[e].next = next
    if prev != NONE:
        o.entries[prev].next = e
    else:
        o.buckets[b].first = e
    if next != NONE:
        o.entries[next].prev = e


cdef void unlink(CountOrder* o, int32_t e) noexcept nogil:
    cdef int32_t prev = o.entries[e].prev
    cdef int32_t next = o.entries[e].next
    if prev != NONE:
        o.entries[prev].next = next
    else:
        o.buckets[o.entries[e].bucket].first = next
    if next != NONE:
        o.entries[next].prev = prev


cdef void add(
    CountOrder* o, Context* c, int32_t token, int32_t count, int32_t position
) noexcept nogil:
    """A new continuation whose count is the context's lowest, or its only one."""
    cdef int32_t e = take_entry(o, token, position)
    cdef int32_t b = c.tail
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


# Contexts: a single continuation is kept in the context itself, several in the lists.

cdef void count_order_count(
    CountOrder* o, Context* c, int32_t token, int32_t position
) noexcept nogil:
    """Count ``token`` once more after ``c``. Call count_order_reserve(o, 2) first."""
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
        e = count_order_find(o, c.key, token)
        if e == NONE:
            add(o, c, token, 1, position)
        else:
            o.entries[e].last = position
            move(o, c, e, 1)
    c.total += 1
    if c.top != NONE:
        c.token = o.entries[o.buckets[c.top].first].token


cdef void count_order_uncount(CountOrder* o, Context* c, int32_t token) noexcept nogil:
    """Remove one count of ``token``, which must have one. The caller drops a context of total 0.

    Call count_order_reserve(o, 1) first.
    """
    cdef int32_t e, b, last
    c.total -= 1
    if c.top == NONE:
        return
    e = count_order_find(o, c.key, token)
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
