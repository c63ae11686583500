"""Counting at most 128 tokens to find the most frequent ones. 1.5 kB, on the stack."""

from libc.stdint cimport int16_t, int32_t, int64_t, uint32_t

cdef enum:
    TALLIED = 128           # maximum number of tokens counted
    TALLY_SLOTS = 256
    SEPARATOR = 0x7fffffff  # not a token; not counted

cdef struct Tally:
    int32_t token[TALLIED]      # the different tokens, in order of first occurrence
    int32_t count[TALLIED]
    int16_t slot[TALLY_SLOTS]   # open addressing: 1 + the index of a token, or 0
    int n


cdef inline void begin(Tally* t) noexcept nogil:
    cdef int i
    t.n = 0
    for i in range(TALLY_SLOTS):
        t.slot[i] = 0


cdef inline void count_in(Tally* t, int32_t token) noexcept nogil:
    """Count one of at most ``TALLIED`` tokens."""
    cdef uint32_t i = (<uint32_t>token * <uint32_t>0x9E3779B1) >> 24
    if token == SEPARATOR:
        return
    while t.slot[i] and t.token[t.slot[i] - 1] != token:
        i = (i + 1) & (TALLY_SLOTS - 1)
    if t.slot[i]:
        t.count[t.slot[i] - 1] += 1
        return
    t.token[t.n], t.count[t.n] = token, 1
    t.n += 1
    t.slot[i] = <int16_t>t.n


cdef inline int best(
    const Tally* t, int32_t* tokens, int64_t* counts, int most, int64_t of
) noexcept nogil:
    """The leading tokens by count, on ties the lower id first, scaled from TALLIED to ``of``."""
    cdef int i, j, n = 0
    for i in range(t.n):
        j = n
        while j and (
            counts[j - 1] < t.count[i]
            or (counts[j - 1] == t.count[i] and tokens[j - 1] > t.token[i])
        ):
            if j < most:
                tokens[j], counts[j] = tokens[j - 1], counts[j - 1]
            j -= 1
        if j < most:
            tokens[j], counts[j] = t.token[i], t.count[i]
            n = min(n + 1, most)
    for i in range(n):
        counts[i] = counts[i] * of // TALLIED
    return n
