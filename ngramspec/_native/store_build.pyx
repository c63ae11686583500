"""The parts of building a corpus that visit every place: keys, wide intervals and their counts.

``store_corpus.pxd`` describes the format. Inputs are the text as int32 codes, with ``SEPARATOR`` as
separator, and the sorted places. Each function makes one pass.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t

import numpy as np

from ngramspec._native.store_codes cimport Key, key_tokens, pack
from ngramspec._native.store_corpus cimport LEADING, PROBES, WIDE, Wide, slot_of
from ngramspec._native.store_tally cimport SEPARATOR

cdef enum:
    AHEAD = 8           # tokens of the longest context whose intervals are precomputed

SEPARATOR_CODE = SEPARATOR
WIDE_BYTES = sizeof(Wide)


def keys(const int32_t[::1] text, const uint32_t[::1] places, int width, int step):
    """The keys of every ``step``-th place: uint64 (n, 2)."""
    cdef Py_ssize_t i, k, n = (places.shape[0] + step - 1) // step
    packed = np.empty((n, 2), np.uint64)
    cdef uint64_t[:, ::1] into = packed
    cdef Key key
    cdef int j
    cdef int32_t code
    with nogil:
        for i in range(n):
            key.high = key.low = 0
            k = places[i * step]
            for j in range(key_tokens(width)):
                code = text[k - 1 - j] if k > j else <int32_t>SEPARATOR
                key = pack(key, width, j, code)
                if code == SEPARATOR:
                    break
            into[i, 0], into[i, 1] = key.high, key.low
    return packed


def wide_intervals(const int32_t[::1] text, const uint32_t[::1] places):
    """The intervals of more than WIDE places after contexts of 1..8 tokens: int64 (n, 2).

    An interval of several contexts is listed once. At most ``8 * len(places) / 128`` intervals.
    """
    cdef Py_ssize_t n = places.shape[0], i, longer, used = 0
    cdef Py_ssize_t begun[AHEAD + 1]
    cdef int j, same
    cdef int32_t a, b
    intervals = np.empty((AHEAD * (n // WIDE + 1), 2), np.int64)
    cdef long long[:, ::1] into = intervals
    with nogil:
        for j in range(AHEAD + 1):
            begun[j] = 0
        for i in range(1, n + 1):
            same = 0
            while i < n and same < AHEAD:
                a = text[places[i - 1] - 1 - same]
                b = text[places[i] - 1 - same]
                if a != b or a == SEPARATOR:
                    break
                same += 1
            longer = -1
            for j in range(AHEAD, same, -1):  # these contexts end here
                if i - begun[j] > WIDE and begun[j] != longer:
                    into[used, 0], into[used, 1] = begun[j], i
                    used += 1
                longer = begun[j]
                begun[j] = i
    return intervals[:used]


def count_wide(const int32_t[::1] following, const long long[:, ::1] intervals, int limit):
    """Entries with the leading continuations of intervals: uint8 (n, WIDE_BYTES).

    Args:
        following: the token at each place.
        intervals: int64 (n, 2).
        limit: exclusive upper bound of the token ids; eight bytes are allocated for each id.
    """
    cdef Py_ssize_t i, k
    cdef int j, n
    entries = np.zeros((intervals.shape[0], sizeof(Wide)), np.uint8)
    cdef unsigned char[:, ::1] memory = entries
    cdef uint32_t[::1] counts = np.zeros(limit, np.uint32)
    cdef int32_t[::1] seen = np.empty(limit, np.int32)
    cdef Wide* wide
    cdef int32_t token
    with nogil:
        for i in range(intervals.shape[0]):
            wide = <Wide*>&memory[i, 0]
            wide.first, wide.end = <uint32_t>intervals[i, 0], <uint32_t>intervals[i, 1]
            n = 0
            for k in range(intervals[i, 0], intervals[i, 1]):
                token = following[k]
                if counts[token] == 0:
                    seen[n] = token
                    n += 1
                counts[token] += 1
            for j in range(n):
                rank(wide, <uint32_t>seen[j], counts[seen[j]])
                counts[seen[j]] = 0
    return entries


cdef void rank(Wide* wide, uint32_t token, uint32_t count) noexcept nogil:
    """Insert a continuation among the leading ones, if it is one of them."""
    cdef int i = LEADING
    while i and (
        wide.count[i - 1] < count or (wide.count[i - 1] == count and wide.token[i - 1] > token)
    ):
        if i < LEADING:
            wide.token[i], wide.count[i] = wide.token[i - 1], wide.count[i - 1]
        i -= 1
    if i < LEADING:
        wide.token[i], wide.count[i] = token, count


def slots(const long long[:, ::1] intervals):
    """Open addressing for intervals: uint32 (2 ** k,), an entry's number + 1, or 0.

    Returns:
        (slots, kept): whether each interval found a place within PROBES, bool (n,).
    """
    cdef Py_ssize_t i, n = intervals.shape[0], size = 2
    cdef uint64_t at
    cdef int _k
    while size < 2 * n:
        size *= 2
    table = np.zeros(size, np.uint32)
    placed = np.zeros(n, np.uint8)
    cdef uint32_t[::1] into = table
    cdef unsigned char[::1] kept = placed
    for i in range(n):
        at = slot_of(<uint32_t>intervals[i, 0], <uint32_t>intervals[i, 1])
        for _k in range(PROBES):
            if into[at & (size - 1)] == 0:
                into[at & (size - 1)] = <uint32_t>i + 1
                kept[i] = 1
                break
            at += 1
    return table, placed.astype(bool)
