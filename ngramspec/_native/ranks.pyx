"""Counting up and down in the rank lists; see ranks.pxd for the structure and its invariants."""

from libc.stdint cimport INT32_MAX
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from ngramspec._native.common cimport NONE, reserve
from ngramspec._native.xxh64 cimport scatter

cdef enum:
    TIES = 64  # a continuation that lost a count is placed exactly among so many newer equals


cdef void ranks_init(Ranks* r) noexcept nogil:
    memset(r, 0, sizeof(Ranks))
    r.entry_free = r.bucket_free = NONE


cdef void ranks_free(Ranks* r) noexcept nogil:
    free(r.entries)
    free(r.buckets)
    free(r.index)
    ranks_init(r)


cdef Py_ssize_t ranks_sizeof(const Ranks* r) noexcept nogil:
    return (
        r.entry_cap * sizeof(Entry)
        + r.bucket_cap * sizeof(Bucket)
        + r.index_cap * sizeof(int32_t)
    )


# The index: linear probing, erased by shifting back, so that no tombstones pile up. The salt is in
# the contexts' keys.

cdef inline Py_ssize_t home(const Ranks* r, uint64_t key, int32_t token) noexcept nogil:
    return <Py_ssize_t>(scatter(key ^ <uint64_t>token) & <uint64_t>(r.index_cap - 1))


cdef inline void index_put(Ranks* r, int32_t e) noexcept nogil:
    cdef Py_ssize_t i = home(r, r.buckets[r.entries[e].bucket].key, r.entries[e].token)
    while r.index[i] != 0:
        i = (i + 1) & (r.index_cap - 1)
    r.index[i] = e + 1


cdef void index_erase(Ranks* r, int32_t e) noexcept nogil:
    cdef Py_ssize_t mask = r.index_cap - 1
    cdef Py_ssize_t i = home(r, r.buckets[r.entries[e].bucket].key, r.entries[e].token)
    cdef Py_ssize_t j, h
    cdef int32_t other
    while r.index[i] != e + 1:
        i = (i + 1) & mask
    j = i
    while True:
        j = (j + 1) & mask
        if r.index[j] == 0:
            break
        other = r.index[j] - 1
        h = home(r, r.buckets[r.entries[other].bucket].key, r.entries[other].token)
        if ((j - h) & mask) >= ((j - i) & mask):  # it may move into the gap
            r.index[i] = r.index[j]
            i = j
    r.index[i] = 0


cdef int32_t ranks_find(const Ranks* r, uint64_t key, int32_t token) noexcept nogil:
    cdef Py_ssize_t i
    cdef int32_t e
    if r.index_cap == 0:
        return NONE
    i = home(r, key, token)
    while r.index[i] != 0:
        e = r.index[i] - 1
        if r.entries[e].token == token and r.buckets[r.entries[e].bucket].key == key:
            return e
        i = (i + 1) & (r.index_cap - 1)
    return NONE


cdef Py_ssize_t ranks_longest_probe(const Ranks* r) noexcept nogil:
    """Most places of the index that finding an entry looks at, 1 where none collide."""
    cdef Py_ssize_t i, h, longest = 0
    cdef int32_t e
    for i in range(r.index_cap):
        if r.index[i] != 0:
            e = r.index[i] - 1
            h = home(r, r.buckets[r.entries[e].bucket].key, r.entries[e].token)
            longest = max(longest, ((i - h) & (r.index_cap - 1)) + 1)
    return longest


cdef int ranks_reserve(Ranks* r, Py_ssize_t more) noexcept nogil:
    """Make room for ``more`` entries and buckets, so that counting cannot fail half-way."""
    cdef int32_t* old = r.index
    cdef int32_t* grown
    cdef Py_ssize_t i, cap = r.index_cap, old_cap = r.index_cap
    if r.entry_top + more > INT32_MAX or r.bucket_top + more > INT32_MAX:
        return -1
    if reserve(<void**>&r.entries, &r.entry_cap, r.entry_top + more, sizeof(Entry)) < 0:
        return -1
    if reserve(<void**>&r.buckets, &r.bucket_cap, r.bucket_top + more, sizeof(Bucket)) < 0:
        return -1
    if 4 * (r.entry_n + more) <= 3 * cap:
        return 0
    cap = 64 if cap == 0 else 2 * cap
    grown = <int32_t*>calloc(<size_t>cap, sizeof(int32_t))
    if grown == NULL:
        return -1
    r.index = grown
    r.index_cap = cap
    for i in range(old_cap):
        if old[i] != 0:
            index_put(r, old[i] - 1)
    free(old)
    return 0


# Buckets and entries.

cdef int32_t take_bucket(
    Ranks* r, Context* c, int32_t count, int32_t up, int32_t down
) noexcept nogil:
    """A new empty bucket between ``up`` and ``down``, either of which may be NONE."""
    cdef int32_t b = r.bucket_free
    if b != NONE:
        r.bucket_free = r.buckets[b].down
    else:
        b = <int32_t>r.bucket_top
        r.bucket_top += 1
    r.bucket_n += 1
    r.buckets[b].key = c.key
    r.buckets[b].count = count
    r.buckets[b].first = NONE
    r.buckets[b].up = up
    r.buckets[b].down = down
    if up != NONE:
        r.buckets[up].down = b
    else:
        c.top = b
    if down != NONE:
        r.buckets[down].up = b
    else:
        c.tail = b
    return b


cdef void drop_bucket(Ranks* r, Context* c, int32_t b) noexcept nogil:
    cdef int32_t up = r.buckets[b].up
    cdef int32_t down = r.buckets[b].down
    if up != NONE:
        r.buckets[up].down = down
    else:
        c.top = down
    if down != NONE:
        r.buckets[down].up = up
    else:
        c.tail = up
    r.buckets[b].count = 0
    r.buckets[b].down = r.bucket_free
    r.bucket_free = b
    r.bucket_n -= 1


cdef int32_t take_entry(Ranks* r, int32_t token, int32_t position) noexcept nogil:
    cdef int32_t e = r.entry_free
    if e != NONE:
        r.entry_free = r.entries[e].next
    else:
        e = <int32_t>r.entry_top
        r.entry_top += 1
    r.entry_n += 1
    r.entries[e].token = token
    r.entries[e].last = position
    return e


cdef inline void drop_entry(Ranks* r, int32_t e) noexcept nogil:
    r.entries[e].bucket = NONE
    r.entries[e].next = r.entry_free
    r.entry_free = e
    r.entry_n -= 1


cdef void link(Ranks* r, int32_t e, int32_t b) noexcept nogil:
    """Put an entry into a bucket, behind those that occurred later."""
    cdef int32_t prev = NONE
    cdef int32_t next = r.buckets[b].first
    cdef int steps = 0
    while next != NONE and steps < TIES and r.entries[next].last > r.entries[e].last:
        prev = next
        next = r.entries[next].next
        steps += 1
    r.entries[e].bucket = b
    r.entries[e].prev = prev
    r.entries[e].next = next
    if prev != NONE:
        r.entries[prev].next = e
    else:
        r.buckets[b].first = e
    if next != NONE:
        r.entries[next].prev = e


cdef void unlink(Ranks* r, int32_t e) noexcept nogil:
    cdef int32_t prev = r.entries[e].prev
    cdef int32_t next = r.entries[e].next
    if prev != NONE:
        r.entries[prev].next = next
    else:
        r.buckets[r.entries[e].bucket].first = next
    if next != NONE:
        r.entries[next].prev = prev


cdef void add(Ranks* r, Context* c, int32_t token, int32_t count, int32_t position) noexcept nogil:
    """A new continuation whose count is the context's lowest, or its only one."""
    cdef int32_t e = take_entry(r, token, position)
    cdef int32_t b = c.tail
    if b == NONE or r.buckets[b].count != count:
        b = take_bucket(r, c, count, c.tail, NONE)
    link(r, e, b)
    index_put(r, e)


cdef void move(Ranks* r, Context* c, int32_t e, int step) noexcept nogil:
    """Take an entry to the bucket one count higher (``step`` = 1) or lower (-1)."""
    cdef int32_t b = r.entries[e].bucket
    cdef int32_t count = r.buckets[b].count + step
    cdef int32_t to = r.buckets[b].up if step > 0 else r.buckets[b].down
    unlink(r, e)
    if to == NONE or r.buckets[to].count != count:
        if r.buckets[b].first == NONE:  # it was alone: its bucket moves along
            r.buckets[b].count = count
            to = b
        elif step > 0:
            to = take_bucket(r, c, count, to, b)
        else:
            to = take_bucket(r, c, count, b, to)
    link(r, e, to)
    if r.buckets[b].first == NONE:
        drop_bucket(r, c, b)


# Contexts: one continuation is kept in the context itself, several in the lists.

cdef void ranks_count(Ranks* r, Context* c, int32_t token, int32_t position) noexcept nogil:
    """Count ``token`` once more after ``c``. Needs ranks_reserve(r, 2) before."""
    cdef int32_t e, first_seen
    if c.total == 0 or (c.top == NONE and c.token == token):
        c.token = token
        c.top = NONE
        c.tail = position
    elif c.top == NONE:  # a second continuation: both move to the lists
        first_seen = c.tail
        c.tail = NONE
        add(r, c, c.token, c.total, first_seen)
        add(r, c, token, 1, position)
    else:
        e = ranks_find(r, c.key, token)
        if e == NONE:
            add(r, c, token, 1, position)
        else:
            r.entries[e].last = position
            move(r, c, e, 1)
    c.total += 1
    if c.top != NONE:
        c.token = r.entries[r.buckets[c.top].first].token


cdef void ranks_uncount(Ranks* r, Context* c, int32_t token) noexcept nogil:
    """Take one count of ``token`` back; it has one. The caller drops a context of total 0.

    Needs ranks_reserve(r, 1) before.
    """
    cdef int32_t e, b
    c.total -= 1
    if c.top == NONE:
        return
    e = ranks_find(r, c.key, token)
    b = r.entries[e].bucket
    if r.buckets[b].count > 1:
        move(r, c, e, -1)
    else:
        index_erase(r, e)
        unlink(r, e)
        if r.buckets[b].first == NONE:
            drop_bucket(r, c, b)
        drop_entry(r, e)
    e = r.buckets[c.top].first
    c.token = r.entries[e].token
    if c.top == c.tail and r.entries[e].next == NONE:  # one continuation is left
        index_erase(r, e)
        b = c.top
        c.top = NONE
        c.tail = r.entries[e].last
        drop_entry(r, e)
        r.buckets[b].count = 0
        r.buckets[b].down = r.bucket_free
        r.bucket_free = b
        r.bucket_n -= 1
