"""The contexts that predict a text's next token, and their keys in a context table."""

from libc.stdint cimport int32_t, uint64_t

from ngramspec._native.xxh64 cimport xxh64

cdef enum:
    CONTEXTS = 4            # the last one, two and three tokens, and the token before the last
    ORDERS = CONTEXTS - 1   # those without a gap; the one with index m has m + 1 tokens
    SKIP = ORDERS           # index of the one that skips the last token
    SKIP_SEED = 32          # its hash seed; the others use their n-gram's order

cdef struct Keys:           # keys of a position's contexts; 0 where the text is too short
    uint64_t of[CONTEXTS]


cdef inline Keys keys_of(const int32_t* end, Py_ssize_t n, uint64_t salt) noexcept nogil:
    """Keys of the contexts of a text of ``n`` tokens that ends before ``end``."""
    cdef Keys keys
    keys.of[0] = xxh64(end - 1, 1, 2, salt) if n >= 1 else 0
    keys.of[1] = xxh64(end - 2, 2, 3, salt) if n >= 2 else 0
    keys.of[2] = xxh64(end - 3, 3, 4, salt) if n >= 3 else 0
    keys.of[SKIP] = xxh64(end - 2, 1, SKIP_SEED, salt) if n >= 2 else 0
    return keys
