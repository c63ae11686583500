"""The recent tokens of a text, which may come next where no context is known.

A new token replaces the one with the lowest count; on ties, the oldest. At ``FADE_AT`` all
counts are halved.
"""

from libc.stdint cimport int32_t
from libc.string cimport memmove

cdef enum:
    FADE_AT = 255


cdef void use(Recent* r, int32_t token) noexcept nogil:
    """Count a token and make it the most recent."""
    cdef int i, at = 0
    cdef int32_t count = 0
    while at < r.used and r.token[at] != token:
        at += 1
    if at < r.used:
        count = r.count[at]
    elif at < RECENT:
        r.used += 1
    else:
        at -= 1
        for i in range(RECENT - 2, -1, -1):
            if r.count[i] < r.count[at]:
                at = i
    memmove(&r.token[1], &r.token[0], at * sizeof(int32_t))
    memmove(&r.count[1], &r.count[0], at * sizeof(int32_t))
    r.token[0] = token
    r.count[0] = count + 1
    r.total += 1
    if r.total == FADE_AT:
        r.total = FADE_AT // 2
        for i in range(r.used):
            r.count[i] >>= 1
