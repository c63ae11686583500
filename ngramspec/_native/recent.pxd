"""The tokens that a text used recently, which may come next where no context is known.

A new token replaces the one with the lowest count; on ties, the oldest. At ``RECENT_FADE_AT`` all
counts are halved.

Invariant: the first ``used`` tokens differ. Costs: counting a token O(RECENT). Memory: 520 bytes.
The owner prevents concurrent use.
"""

from libc.stdint cimport int32_t
from libc.string cimport memmove

cdef enum:
    RECENT = 64         # tokens kept
    RECENT_FADE_AT = 255

cdef struct Recent:
    int32_t token[RECENT]   # the most recent first; entries from ``used`` on are meaningless
    int32_t count[RECENT]   # fading count of each
    int32_t used
    int32_t total           # fading count of all tokens, including replaced ones


cdef inline void use(Recent* r, int32_t token) noexcept nogil:
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
    if r.total == RECENT_FADE_AT:
        r.total = RECENT_FADE_AT // 2
        for i in range(r.used):
            r.count[i] >>= 1
