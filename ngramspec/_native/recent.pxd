"""The tokens that a text used recently, the most recent first.

Invariant: the first ``used`` tokens differ. Costs: counting a token O(RECENT). Memory: 520 bytes.
The owner prevents concurrent use.
"""

from libc.stdint cimport int32_t

cdef enum:
    RECENT = 64         # tokens kept

cdef struct Recent:
    int32_t token[RECENT]   # the most recent first; entries from ``used`` on are meaningless
    int32_t count[RECENT]   # fading count of each
    int32_t used
    int32_t total           # fading count of all tokens, including replaced ones


cdef void use(Recent* r, int32_t token) noexcept nogil
