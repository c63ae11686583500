"""Finding the places to copy from, and advancing them over committed tokens.

The match is the longest of the one followed so far and those at the latest occurrences of the last
one to three tokens. The work is bounded for any text: one search compares at most
``FAR * 3 + NEAR_LENGTH * (BEFORE + BEHIND)`` tokens. The owner prevents concurrent use.
"""

from libc.stdint cimport int32_t

from ngramspec._native.common cimport NONE
from ngramspec._native.contexts cimport Slot
from ngramspec._native.keys cimport ORDERS

cdef enum:
    BEFORE = 16         # positions searched before a resumed copy
    BEHIND = 32         # positions searched after it
    NEAR_LENGTH = 8     # tokens compared at each position


cdef inline int agreement(const Text* text, Py_ssize_t at, int most) noexcept nogil:
    """How many tokens before ``at`` equal those at the text's end, at most ``most``."""
    cdef int n = 0
    most = <int>min(<Py_ssize_t>most, at)
    while n < most and text.tokens[at - 1 - n] == text.tokens[text.n - 1 - n]:
        n += 1
    return n


cdef inline int continued(const Place* place, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
    """How many of ``n`` tokens, from the first, equal those at a place."""
    cdef int i = 0
    if place.at == NONE:
        return 0
    while (
        i < n and place.at + i < place.text.n and place.text.tokens[place.at + i] == tokens[i]
    ):
        i += 1
    return i


cdef void find_match(
    Place* places, const Text* text, const Slot** known, int min_match
) noexcept nogil:
    """Move the match to the latest occurrence of the last tokens, if more tokens agree there.

    Args:
        places: PLACES places.
        text: the sequence's own text.
        known: its contexts, NULL where one never occurred.
        min_match: shortest match to follow, >= 1.
    """
    cdef Place* match = &places[MATCH]
    cdef int m, length
    cdef int32_t at
    if match.at == NONE:
        match.length = 0
    for m in range(ORDERS - 1, -1, -1):
        if m + 1 < min(min_match, 2) or known[m] == NULL:
            continue
        at = known[m].last
        if at == match.at or at >= text.n or match.length >= FAR:
            continue
        length = agreement(text, at, FAR)
        if length > match.length:
            match.text = text
            match.at = at
            match.length = length
    if match.length < min_match:
        match.at = NONE
        match.length = 0


cdef void find_near(Place* places, const Text* text) noexcept nogil:
    """Set the near place: the longest agreement around the resumed copy; on ties, the nearest."""
    cdef Place* near = &places[NEAR]
    cdef int32_t last, resumed = places[RESUME].at
    cdef Py_ssize_t at
    cdef int length, distance
    near.at = NONE
    near.length = 0
    if resumed == NONE:
        return
    near.text = text
    last = text.tokens[text.n - 1]
    for at in range(max(resumed - BEFORE, 1), min(<Py_ssize_t>resumed + BEHIND, text.n)):
        if text.tokens[at - 1] != last or at == resumed or at == places[MATCH].at:
            continue
        length = agreement(text, at, NEAR_LENGTH)
        distance = <int>(at - resumed if at > resumed else resumed - at)
        if length > near.length or (length == near.length and distance < near.since):
            near.at = <int32_t>at
            near.length = length
            near.since = distance


cdef void follow_places(Place* places, const Text* text, Py_ssize_t n) noexcept nogil:
    """Advance the places over the ``n`` tokens last committed to ``text``."""
    cdef Place* match = &places[MATCH]
    cdef Place* resume = &places[RESUME]
    cdef Place* near = &places[NEAR]
    cdef const int32_t* new = text.tokens + text.n - n
    cdef int copied = continued(match, new, n)
    cdef int nearby = continued(near, new, n)
    if copied:
        resume[0] = match[0]
        resume.length = match.length + copied
        resume.since = max(<int>n - copied - 1, 0)
    elif nearby:
        resume[0] = near[0]
        resume.length = near.length + nearby
        resume.since = <int>n - nearby
    elif resume.at != NONE:
        resume.since += <int>n
    if resume.at != NONE:
        resume.at += <int32_t>n
        if resume.at >= text.n - n:
            resume.at = NONE
    near.at = NONE
    if copied == n:
        match.at += <int32_t>n
        match.length += <int>n
    else:
        match.at = NONE
        match.length = 0
