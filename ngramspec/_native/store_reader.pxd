"""Text that outlives a request, and the places in it that a sequence follows."""

from libc.stdint cimport int32_t, int64_t, uint64_t

cdef enum:
    SEPARATOR = 0x7fffffff  # not a token
    STORE_PLACES = 32   # places followed at once, bits of ``live``
    AHEAD = 64          # tokens buffered per place
    CHUNK = 8           # tokens copied from the store at once
    STORE_LEADERS = 8   # different next tokens that are kept
    FAR_OFF = 0x7fffffff    # a distance that is unknown or too long
    COPIED = 3          # minimum match length for a place to count as copied from

cdef struct Found:      # a place to follow
    int64_t at          # position of the next token
    int32_t length      # number of preceding tokens that agree with the context

cdef struct Followed:   # a place that is followed
    int64_t at          # position in the store of tokens[0]
    int32_t length      # tokens matched before the next one
    int32_t skip        # index of the next token in tokens[]
    int32_t filled
    bint ends           # nothing follows the buffered tokens
    int32_t distance    # from where the last copy would continue; FAR_OFF without one
    int32_t tokens[AHEAD]

cdef struct Votes:      # the next tokens at the places that a path follows
    int n               # number of tokens; the entry after the last stands for all other tokens
    int length          # of the longest match, including the path; 0: no place
    int total           # places of the longest match that have a next token
    int others          # places of shorter matches that have a next token
    int32_t token[STORE_LEADERS]    # by both counts; on ties, the first one first
    int32_t count[STORE_LEADERS + 1]    # count among the longest matches
    int32_t other[STORE_LEADERS + 1]    # count among the shorter matches
    uint64_t places[STORE_LEADERS]  # bits of the places where it is next
    int32_t distance[STORE_LEADERS + 1]  # the shortest distance of its places
    int leading         # index of the token with the highest count; on ties, the first
    int leading_other   # the same among the shorter matches
    int nearest         # index of the shortest distance, or NONE


cdef class StoreSource:
    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil
    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil
    cdef void credit(self, int64_t at, int n) noexcept nogil
    cdef bint earlier(self, int64_t at) noexcept nogil


cdef class Familiar:    # what a conversation's requests learn about a store, one after another
    cdef int64_t copied_to      # where the last copy would continue, or NONE


cdef class StoreReader:
    cdef StoreSource source
    cdef Familiar familiar
    cdef Followed places[STORE_PLACES]
    cdef uint64_t live          # bits of the places that are followed
    cdef int longest            # length of the longest match, 0 without one
    cdef bint earlier           # whether it is in the text of earlier requests
    cdef bint asked             # whether places were looked up for the last draft
    cdef int missed             # consecutive look-ups without a place that was right
    cdef int pause              # tokens until the next look-up
    cdef long long look_ups, hits

    cdef void rate(self) noexcept nogil
    cdef void judge(self, bint right) noexcept nogil
    cdef uint64_t find(self, const int32_t* end, Py_ssize_t have, int most) noexcept nogil
    cdef int32_t fetch(self, Followed* place, int depth) noexcept nogil
    cdef inline int32_t token(self, Followed* place, int depth) noexcept nogil:
        """The token ``depth`` after the next one at a place, or NONE."""
        cdef int want = place.skip + depth
        return place.tokens[want] if want < place.filled else self.fetch(place, depth)

    cdef void vote(self, uint64_t live, int depth, Votes* votes) noexcept nogil
    cdef uint64_t matching(
        self, uint64_t live, int depth, const Votes* votes, int32_t token
    ) noexcept nogil
    cdef int continued(self, Followed* place, const int32_t* new, Py_ssize_t n) noexcept nogil
    cdef void note_copied(self, const int* agrees, Py_ssize_t n) noexcept nogil
    cdef void follow(self, const int32_t* new, Py_ssize_t n) noexcept nogil
    cdef void credit(self, int n) noexcept nogil
    cdef void count_anew(self) noexcept nogil
