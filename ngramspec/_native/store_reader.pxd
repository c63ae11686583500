"""The places in a store that a sequence follows, and what comes next at them.

Places are found at the text's end and followed while a draft is made: a draft's path keeps those
whose text it is. What comes next there is counted, apart for the places of the longest match and
for those of shorter ones.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t

from ngramspec._native.common cimport NONE
from ngramspec._native.regions cimport Regions
from ngramspec._native.store_source cimport Found, StoreSource

cdef enum:
    STORE_PLACES = 32   # followed at once, bits of ``live``
    AHEAD = 64          # tokens held of each
    CHUNK = 8           # tokens copied from the store at once
    STORE_LEADERS = 8   # different tokens kept of what comes next
    FAR_OFF = 0x7fffffff    # a distance that is not known, or longer
    COPIED = 3          # tokens of a match whose place counts as copied from

cdef struct Followed:   # a place that is followed
    int64_t at          # position in the store of tokens[0]
    int32_t length      # tokens matched before the next one
    int32_t skip        # of the next token in tokens[]
    int32_t filled
    bint ends           # nothing follows what is filled
    float copied        # fading count of tokens that were right in its region,
    int32_t distance    # from where the last copy would go on; FAR_OFF without one
    int32_t tokens[AHEAD]

cdef extern from *:
    """
    #define NGS_LOWEST(bits) __builtin_ctzll(bits)
    """
    int lowest "NGS_LOWEST" (uint64_t bits) noexcept nogil  # index of the lowest bit that is set

cdef struct Votes:      # what comes next at the places that a path follows
    int n               # tokens; the entry behind the last is of every other token
    int length          # of the longest match, the path included; 0: no place
    int total           # places of it that go on
    int others          # places of shorter matches that go on
    int32_t token[STORE_LEADERS]    # by both counts, the first of equals first
    int32_t count[STORE_LEADERS + 1]    # among the longest
    int32_t other[STORE_LEADERS + 1]    # among the shorter
    uint64_t places[STORE_LEADERS]  # bits of those where it comes next
    float copied[STORE_LEADERS + 1]     # the most that was right in a region of its places,
    int32_t distance[STORE_LEADERS + 1]  # and the shortest distance of one
    int leading         # of the token with the highest count, the first of equals
    int leading_other   # the same among the shorter matches
    int familiar        # the most right in a region, then the highest count; NONE: none was
    int nearest         # of the token at the shortest distance, or NONE: no token
    int32_t resumed     # what comes next at the place that was left, or NONE


cdef class StoreReader:
    cdef StoreSource source
    cdef Followed places[STORE_PLACES]
    cdef Followed resume        # the place that was followed last, past a substituted token
    cdef Regions regions        # and what was right in each lately
    cdef int64_t copied_to      # where the last copy would go on, or NONE
    cdef int since              # tokens since it was left, or NONE: there is none
    cdef uint64_t live          # bits of the places that are followed
    cdef int longest            # length of the longest match, 0 without one
    cdef bint earlier           # whether that is in what earlier requests said,
    cdef bint resume_earlier    # and the place that was left
    cdef bint asked             # whether places were looked up for the last draft
    cdef int missed             # look-ups in a row of which no place went on as the sequence did
    cdef int pause              # tokens until the next look-up
    cdef readonly long long look_ups, hits

    cdef void rate(self) noexcept nogil
    cdef void judge(self, bint right) noexcept nogil
    cdef uint64_t find(self, const int32_t* end, Py_ssize_t have, int most) noexcept nogil
    cdef int32_t fetch(self, Followed* place, int depth) noexcept nogil
    cdef inline int32_t token(self, Followed* place, int depth) noexcept nogil:
        """The token ``depth`` behind the next one at a place, or NONE."""
        cdef int want = place.skip + depth
        return place.tokens[want] if want < place.filled else self.fetch(place, depth)

    cdef void vote(self, uint64_t live, int depth, Votes* votes) noexcept nogil
    cdef uint64_t matching(
        self, uint64_t live, int depth, const Votes* votes, int32_t token
    ) noexcept nogil
    cdef int continued(self, Followed* place, const int32_t* new, Py_ssize_t n) noexcept nogil
    cdef void pass_over(self, Followed* place, Py_ssize_t n) noexcept nogil
    cdef void count_right(self, const int* agrees, Py_ssize_t n) noexcept nogil
    cdef void follow(self, const int32_t* new, Py_ssize_t n) noexcept nogil
    cdef void credit(self, int n) noexcept nogil
    cdef void count_anew(self) noexcept nogil
