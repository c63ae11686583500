"""The codes and keys of a corpus: reading them, and comparing them with a context's last tokens.

A code has 2 or 3 bytes, the lowest first. Codes from ``limit`` on are not tokens.
"""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint64_t

from ngramspec._native.store_tally cimport SEPARATOR

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #define NGS_HIGH_ZEROS(x) __builtin_clzll(x)
    static inline uint64_t ngs_eight_before(const uint8_t* end) {
        uint64_t bytes;
        memcpy(&bytes, end - 8, 8);
        return bytes;
    }
    """
    int high_zeros "NGS_HIGH_ZEROS" (uint64_t x) noexcept nogil     # for x > 0
    uint64_t eight_before "ngs_eight_before" (const uint8_t* end) noexcept nogil

cdef struct Key:        # the last tokens before a place, the last one in the highest bits
    uint64_t high
    uint64_t low

cdef struct Query:
    const int32_t* end  # after the context's last token
    int have            # number of its tokens, cut before one that the corpus cannot contain
    Key key
    uint64_t last       # the codes of the last two to four tokens, as stored in the text
    int in_last         # number of tokens in ``last``


cdef inline int32_t raw_code(const uint8_t* codes, int width, uint64_t i) noexcept nogil:
    """The ``i``-th code, unchecked."""
    cdef const uint8_t* c = codes + <uint64_t>width * i
    cdef int32_t code = c[0] | c[1] << 8
    if width == 3:
        code |= c[2] << 16
    return code


cdef inline int32_t code_at(
    const uint8_t* codes, int width, int32_t limit, uint64_t i
) noexcept nogil:
    """The ``i``-th code: a token id below ``limit``, or SEPARATOR."""
    cdef int32_t code = raw_code(codes, width, i)
    return code if code < limit else SEPARATOR


cdef inline Key pack(Key key, int width, int i, int32_t code) noexcept nogil:
    """The key with its ``i``-th token from the end added, if it has room for it."""
    cdef int each = 4 if width == 2 else 3
    cdef int bits = 16 if width == 2 else 21
    cdef uint64_t value = <uint64_t>code & ((<uint64_t>1 << bits) - 1)
    if i < each:
        key.high |= value << (64 - bits * (i + 1))
    else:
        key.low |= value << (64 - bits * (i - each + 1))
    return key


cdef inline int key_tokens(int width) noexcept nogil:
    return 8 if width == 2 else 6


cdef inline void set_last(Query* q, int width) noexcept nogil:
    """Prepare comparing several of the context's last tokens at once."""
    cdef int i
    q.last = 0
    q.in_last = min(q.have, 4 if width == 2 else 2)
    for i in range(q.in_last):
        q.last |= <uint64_t>q.end[-1 - i] << (64 - 8 * width * (i + 1))


cdef inline int common(
    const Query* q, const uint8_t* codes, int width, uint64_t at, int most
) noexcept nogil:
    """How many of the context's last ``most`` tokens, at most ``have``, precede ``at``."""
    cdef uint64_t differs
    cdef int same = 0, zeros
    if at >= 4:  # so that eight bytes precede it
        same = q.in_last
        differs = eight_before(codes + width * at) ^ q.last
        if differs:
            zeros = high_zeros(differs)
            same = min(same, zeros >> 4 if width == 2 else (zeros >= 24) + (zeros >= 48))
        if same < q.in_last:
            return min(same, most)
    if at < <uint64_t>most:
        most = <int>at
    while same < most and raw_code(codes, width, at - 1 - same) == q.end[-1 - same]:
        same += 1
    return min(same, most)


cdef inline int read_codes(
    const uint8_t* codes, int width, int32_t limit, uint64_t at, int32_t* into, int n
) noexcept nogil:
    """Copy ``n`` codes as tokens, up to the first that is not a token; return their number."""
    cdef const uint16_t* narrow = <const uint16_t*>codes + at
    cdef int32_t highest = 0
    cdef int i
    if width == 2:
        for i in range(n):
            into[i] = narrow[i]
    else:
        for i in range(n):
            into[i] = raw_code(codes, 3, at + i)
    for i in range(n):
        highest = max(highest, into[i])
    if highest < limit:
        return n
    i = 0
    while into[i] < limit:
        i += 1
    return i


cdef inline void count_keys(
    const Key* keys, uint64_t low, uint64_t high, const Query* q, int width, int most,
    uint64_t* below, uint64_t* equal
) noexcept nogil:
    """Find the position of a context's last ``most`` tokens among the sorted keys in low..high - 1.

    All keys are compared. For few keys that costs less than the branch mispredictions of a binary
    search.

    ``below`` is set to the first key that is not lower, ``equal`` to the first that is higher.
    """
    cdef uint64_t i, here_high, here_low, top = ~<uint64_t>0, bottom = 0
    cdef int each = key_tokens(width) // 2, bits = 16 if width == 2 else 21
    # the bits of the key that are compared
    if most < each:
        top <<= 64 - bits * most
    elif most > each:
        bottom = ~<uint64_t>0 << (64 - bits * (min(most, 2 * each) - each))
    cdef uint64_t wanted_high = q.key.high & top, wanted_low = q.key.low & bottom
    below[0] = equal[0] = low
    for i in range(low, high):
        here_high, here_low = keys[i].high & top, keys[i].low & bottom
        below[0] += (here_high < wanted_high) | (
            (here_high == wanted_high) & (here_low < wanted_low)
        )
        equal[0] += (here_high < wanted_high) | (
            (here_high == wanted_high) & (here_low <= wanted_low)
        )
