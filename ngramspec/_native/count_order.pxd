"""Continuations of many contexts, each context's in count order; on ties, the more recent first.

    buckets   one per context and distinct count, doubly linked, highest count first
    entries   a continuation, doubly linked inside its bucket, most recent first
    index     open addressing on (context key, token) -> entry

A context is the pair (top, tail) of its first and last bucket, which the caller keeps. Counting up
or down and finding the best or the next continuation are O(1). Memory: 20 bytes per continuation,
24 per distinct count of a context, and 5 to 11 per continuation for the index. The owner prevents
concurrent use.
"""

from libc.stdint cimport int32_t, uint64_t

cdef struct Bucket:     # 24 bytes
    uint64_t key        # the context it belongs to
    int32_t count       # count of each of its entries, >= 1; 0 in the free list
    int32_t first       # the most recent entry
    int32_t up          # bucket of the same context with the next higher count
    int32_t down        # with the next lower count; links the free list

cdef struct Entry:      # 20 bytes
    int32_t token
    int32_t bucket
    int32_t last        # position of the last occurrence
    int32_t prev
    int32_t next        # links the free list

cdef struct CountOrder:
    Entry* entries
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

cdef void count_order_init(CountOrder* o) noexcept nogil
cdef void count_order_free(CountOrder* o) noexcept nogil
cdef int count_order_reserve(CountOrder* o, Py_ssize_t more) noexcept nogil
cdef int32_t count_order_find(const CountOrder* o, uint64_t key, int32_t token) noexcept nogil
cdef void count_order_count(
    CountOrder* o, Context* c, int32_t token, int32_t position
) noexcept nogil
cdef void count_order_uncount(CountOrder* o, Context* c, int32_t token) noexcept nogil
cdef Py_ssize_t count_order_longest_probe(const CountOrder* o) noexcept nogil
cdef Py_ssize_t count_order_sizeof(const CountOrder* o) noexcept nogil
