"""The tokens that a text used last, the most recent first.

Invariant: the first ``used`` tokens differ. Costs: counting a token O(RECENT). Memory: 520 bytes.
The owner guards against other threads.
"""

from libc.stdint cimport int32_t

cdef enum:
    RECENT = 64         # tokens kept

cdef struct Recent:
    int32_t token[RECENT]   # the most recent first; those from ``used`` on mean nothing
    int32_t count[RECENT]   # of each, fading
    int32_t used
    int32_t total           # counted tokens, forgotten ones included, fading alike


cdef void use(Recent* r, int32_t token) noexcept nogil
