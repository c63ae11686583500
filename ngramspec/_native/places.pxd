"""Places in a text that a sequence follows, and whose next tokens may be its own next ones.

The place may be in any text that does not move while a draft is made. It is followed as long as the
sequence continues like the text there.
"""

from libc.stdint cimport int32_t

from ngramspec._native.common cimport NONE
from ngramspec._native.contexts cimport Slot

cdef enum:
    MATCH = 0           # the longest known match of the text's end
    RESUME = 1          # where the last copy would continue after a substituted token
    NEAR = 2            # the best match around there, after an insertion or a deletion
    PLACES = 3
    FAR = 64            # maximum number of tokens compared to find a match's length

cdef struct Text:
    int32_t* tokens
    Py_ssize_t cap, n

cdef struct Place:
    const Text* text    # the text that it is in
    int32_t at          # position of the next token, or NONE: no place
    int32_t length      # tokens that matched before it; for a resumed copy, before it was left
    int32_t since       # resumed: tokens since the copy was left; near: distance from there


cdef inline int32_t token_at(const Place* place, int depth, bint wraps) noexcept nogil:
    """The token ``depth`` after the next one; at the text's end NONE, or from the place again."""
    cdef Py_ssize_t at = place.at + depth
    if at < place.text.n:
        return place.text.tokens[at]
    if wraps:
        return place.text.tokens[place.at + depth % (place.text.n - place.at)]
    return NONE
