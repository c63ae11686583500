"""Checks every place, key and count of a corpus, in some microseconds per token."""

from libc.stdint cimport int32_t, int64_t, uint64_t

import numpy as np

from ngramspec._native.store_codes cimport Key, code_at, key_tokens, pack
from ngramspec._native.store_corpus cimport (
    DEEPEST, LEADING, STEP, WIDE, CorpusIndex, Interval, Wide, find_wide,
)
from ngramspec._native.store_tally cimport SEPARATOR


def check_corpus(CorpusIndex corpus not None):
    """Walk every place, key and wide interval; raise an AssertionError if one is broken."""
    cdef uint64_t i, k
    cdef int j, level
    cdef Key key
    cdef uint64_t apart
    for i in range(corpus.m):
        q = corpus.places[i]
        assert 0 < q < corpus.n, f"place {i} is outside the text"
        assert corpus.before(i, 0) != SEPARATOR, f"place {i} has nothing before it"
        token = code_at(corpus.text, corpus.width, corpus.limit, q)
        assert token != SEPARATOR, f"place {i} has nothing behind it"
        assert token == code_at(corpus.next, corpus.width, corpus.limit, i), f"next {i} is another"
        assert i == 0 or ordered(corpus, i), f"place {i} is out of order"
    for level in range(corpus.levels):
        apart = <uint64_t>STEP ** (level + 1)
        for k in range(corpus.key_n[level]):
            key.high = key.low = 0
            for j in range(key_tokens(corpus.width)):
                code = corpus.before(k * apart, j)
                key = pack(key, corpus.width, j, code)
                if code == SEPARATOR:
                    break
            assert key.high == corpus.keys[level][k].high, f"key {k} of level {level} is another"
            assert key.low == corpus.keys[level][k].low, f"key {k} of level {level} is another"
    check_wide(corpus)


cdef bint ordered(CorpusIndex corpus, uint64_t i):
    """Whether place i - 1 does not sort after place i by the compared tokens."""
    cdef int j
    cdef int32_t left, right
    for j in range(DEEPEST):
        left, right = corpus.before(i - 1, j), corpus.before(i, j)
        if left != right:
            return left < right
        if left == SEPARATOR:
            return True
    return True


cdef int check_wide(CorpusIndex corpus) except -1:
    cdef uint64_t i, walked = 0
    cdef Interval found
    cdef const Wide* wide
    for i in range(corpus.wide_n):
        wide = &corpus.wides[i]
        assert wide.first + WIDE < wide.end <= corpus.m, f"wide interval {i} is none"
        walked += wide.end - wide.first  # intervals of contexts of one length do not overlap
        assert walked <= DEEPEST * corpus.m, "the wide intervals overlap too often"
        found.first, found.end = wide.first, wide.end
        assert find_wide(
            corpus.wides, corpus.slots, corpus.wide_n, corpus.slot_n, &found
        ) == wide, f"wide interval {i} cannot be found"
        following = np.asarray([
            code_at(corpus.next, corpus.width, corpus.limit, k) for k in range(wide.first, wide.end)
        ])
        tokens, counts = np.unique(following, return_counts=True)
        counted = sorted(zip((-counts).tolist(), tokens.tolist()))[:LEADING]
        kept = [(-<int64_t>wide.count[k], wide.token[k]) for k in range(LEADING)]
        assert [each for each in kept if each[0]] == counted, f"wide interval {i} is miscounted"
    return 0
