"""The places in a store that a sequence follows, and what comes next at them.

Places are found at the text's end and followed over the drafts and the committed tokens. A draft's
path keeps the places whose text it equals. The next tokens there are counted, separately for the
places of the longest match and nearest kin, and for the others. If a place of the longest match
continues like the sequence, it is again a place of the longest match, and no look-up is needed.

Costs: a look-up finds at most STORE_PLACES places; a draft's position reads one token at each.
Memory: 14 kB. One thread at a time.
"""

cdef extern from *:
    int lowest "__builtin_ctzll" (uint64_t bits) noexcept nogil  # index of the lowest bit

cdef enum:
    SURE = 12           # length from which a match is followed without looking for others
    CHUNK = 8           # tokens copied from the store at once
    STORE_LEADERS = 8   # different next tokens that are kept
    FAR_OFF = 0x7fffffff    # a distance that is unknown or too long
    COPIED = 3          # minimum match length for a place to count as copied from

cdef struct Followed:   # a place that is followed
    int64_t at          # position in the store of tokens[0]
    int32_t length      # tokens matched before the next one
    int32_t skip        # index of the next token in tokens[]
    int32_t filled
    bint ends           # nothing follows the buffered tokens
    int32_t kin         # see Found
    int32_t distance    # from where the last copy would continue; FAR_OFF without one
    int32_t tokens[AHEAD]

cdef struct Votes:      # the next tokens at the places that a path follows
    int n               # number of tokens; the entry after the last stands for all other tokens
    int length          # of the longest match, including the path; 0: no place
    int total           # places of the longest match and nearest kin that have a next token
    int others          # other places that have a next token
    int32_t token[STORE_LEADERS]    # by both counts; on ties, the first one first
    int32_t count[STORE_LEADERS + 1]    # count among the longest matches
    int32_t other[STORE_LEADERS + 1]    # count among the shorter matches
    uint64_t places[STORE_LEADERS]  # bits of the places where it is next
    int32_t distance[STORE_LEADERS + 1]  # the shortest distance of its places
    int leading         # index of the token with the highest count; on ties, the first
    int leading_other   # the same among the shorter matches
    int nearest         # index of the shortest distance, or NONE


cdef inline int take_lowest(uint64_t* bits) noexcept nogil:
    """Remove the lowest bit that is set; return its index."""
    cdef int i = lowest(bits[0])
    bits[0] &= bits[0] - 1
    return i


cdef class StorePrior:
    """Where the texts of one conversation last copied from a store.

    Requests of a conversation may use one at the same time, under the GIL.
    """

    cdef int64_t copied_to      # where the last copy would continue, or NONE

    def __cinit__(self):
        self.copied_to = NONE


cdef class StoreReader:
    """Follows the places of one sequence in one store, or in several combined into one source.

    ``familiar`` is what earlier requests of the same conversation learned; None: nothing.
    """

    cdef StoreSource source
    cdef StorePrior familiar
    cdef Followed places[STORE_PLACES]
    cdef uint64_t live          # bits of the places that are followed
    cdef int longest            # length of the longest match, 0 without one
    cdef bint earlier           # whether it is in the text of earlier requests

    def __cinit__(self, StoreSource source not None, StorePrior familiar=None):
        self.source = source
        self.familiar = StorePrior() if familiar is None else familiar

    def sizeof(self):
        """Bytes allocated."""
        return sizeof(StoreReader) + sizeof(StorePrior)

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        cdef int i
        assert self.live >> STORE_PLACES == 0
        order = [
            (self.places[i].length, self.places[i].kin)
            for i in range(STORE_PLACES) if self.live >> i & 1
        ]
        assert order == sorted(order, reverse=True), "not by length and kin"
        assert not order or self.longest in (0, order[0][0])
        for i in range(STORE_PLACES):
            assert 0 <= self.places[i].skip <= self.places[i].filled <= AHEAD
        assert self.familiar.copied_to == NONE or self.familiar.copied_to >= 0

    cdef uint64_t find(self, const int32_t* end, Py_ssize_t have) noexcept nogil:
        """Find the places after a text, and their distances; return the bits of the live ones."""
        cdef Found found[STORE_PLACES]
        cdef Followed* place
        cdef int64_t at
        cdef uint64_t left
        cdef int i, n
        if self.longest < SURE:
            n = self.source.look(end, have, found, STORE_PLACES)
            for i in range(n):
                self.places[i].at = found[i].at
                self.places[i].length, self.places[i].kin = found[i].length, found[i].kin
                self.places[i].skip = self.places[i].filled = 0
                self.places[i].ends = False
            self.live = (<uint64_t>1 << n) - 1
            self.longest = self.places[0].length if n else 0
            self.earlier = n and self.source.earlier(self.places[0].at)
        left = self.live
        while left:
            place = &self.places[take_lowest(&left)]
            at = place.at + place.skip
            place.distance = FAR_OFF
            if self.familiar.copied_to != NONE:
                at -= self.familiar.copied_to
                place.distance = <int32_t>min(max(at, -at), <int64_t>FAR_OFF)
        return self.live

    cdef int32_t fetch(self, Followed* place, int depth) noexcept nogil:
        """Buffer more of the store; return the token ``depth`` after the next one, or NONE."""
        cdef int more, read
        if depth >= AHEAD:
            return NONE
        place.at += place.skip  # drops committed tokens
        place.filled -= place.skip
        memmove(place.tokens, place.tokens + place.skip, place.filled * sizeof(int32_t))
        place.skip = 0
        while depth >= place.filled:
            if place.ends:
                return NONE
            more = min(<int>CHUNK, AHEAD - place.filled)
            read = self.source.read(place.at + place.filled, place.tokens + place.filled, more)
            place.ends = read < more
            place.filled += read
        return place.tokens[depth]

    cdef inline int32_t token(self, Followed* place, int depth) noexcept nogil:
        """The token ``depth`` after the next one at a place, or NONE."""
        cdef int want = place.skip + depth
        return place.tokens[want] if want < place.filled else self.fetch(place, depth)

    cdef void vote(self, uint64_t live, int depth, Votes* votes) noexcept nogil:
        """Count the next tokens at the places in ``live``, ``depth`` tokens after the text."""
        cdef Followed* place
        cdef uint64_t bit
        cdef int k, n = 0, length = 0, kin = 0
        cdef int32_t token
        cdef bint longest
        votes.total = votes.others = 0
        while live:
            place = &self.places[lowest(live)]
            bit = live & -live
            live ^= bit
            token = self.token(place, depth)
            if token == NONE:
                continue
            if length == 0:  # places are sorted by length and kin
                length, kin = place.length + depth, place.kin
            longest = place.length + depth == length and place.kin == kin
            votes.total += longest
            votes.others += not longest
            k = index_of(votes.token, n, token)
            if k == NONE:
                if n == STORE_LEADERS:
                    continue
                k = n
                n += 1
                votes.token[k], votes.count[k], votes.other[k] = token, longest, not longest
                votes.distance[k] = place.distance
                votes.places[k] = bit
                continue
            votes.count[k] += longest
            votes.other[k] += not longest
            votes.distance[k] = min(votes.distance[k], place.distance)
            votes.places[k] |= bit
        votes.n, votes.length = n, length
        votes.count[n] = votes.other[n] = 0
        votes.distance[n] = votes.nearest = NONE
        votes.leading = votes.leading_other = 0
        for k in range(n):
            if votes.count[k] > votes.count[votes.leading]:
                votes.leading = k
            if votes.other[k] > votes.other[votes.leading_other]:
                votes.leading_other = k
            if votes.nearest == NONE or votes.distance[k] < votes.distance[votes.nearest]:
                votes.nearest = k

    cdef uint64_t matching(
        self, uint64_t live, int depth, const Votes* votes, int32_t token
    ) noexcept nogil:
        """The places in ``live`` where ``token`` is next, as ``vote`` counted them."""
        cdef uint64_t left = 0
        cdef int i = index_of(votes.token, votes.n, token)
        if i != NONE:
            return votes.places[i]
        if votes.n < STORE_LEADERS:  # every token is kept
            return 0
        for i in range(STORE_PLACES):
            if live >> i & 1 and self.token(&self.places[i], depth) == token:
                left |= <uint64_t>1 << i
        return left

    cdef int continued(self, Followed* place, const int32_t* new, Py_ssize_t n) noexcept nogil:
        """How many of ``n`` new tokens, from the first, equal the next ones at a place."""
        cdef int i = 0
        while i < n and self.token(place, i) == new[i]:
            i += 1
        return i

    cdef void note_copied(self, const int* agrees, Py_ssize_t n) noexcept nogil:
        """Note where the last copy would continue: ``agrees[i]`` new tokens are at the i-th place.

        It is the place that agrees longest; on ties, the one nearest to the copy before.
        """
        cdef Followed* place
        cdef uint64_t left = self.live
        cdef int i, last = NONE
        while left:
            i = take_lowest(&left)
            place = &self.places[i]
            if agrees[i] and place.length + agrees[i] >= COPIED and (
                last == NONE
                or agrees[i] > agrees[last]
                or (agrees[i] == agrees[last] and place.distance < self.places[last].distance)
            ):
                last = i
        if last != NONE:
            self.familiar.copied_to = self.places[last].at + self.places[last].skip
        if self.familiar.copied_to != NONE:
            self.familiar.copied_to += n

    cdef void follow(self, const int32_t* new, Py_ssize_t n) noexcept nogil:
        """Advance over ``n`` tokens just committed, and drop the places that differ from them."""
        cdef int agrees[STORE_PLACES]
        cdef uint64_t left = self.live, kept = 0
        cdef int i
        if n > AHEAD:  # more than any draft
            self.live = self.longest = 0
            self.familiar.copied_to = NONE
            return
        while left:
            i = take_lowest(&left)
            agrees[i] = self.continued(&self.places[i], new, n)
            if agrees[i] == n:
                kept |= <uint64_t>1 << i
        self.note_copied(agrees, n)
        self.live = left = kept
        while left:
            i = take_lowest(&left)
            self.places[i].skip += <int>n
            self.places[i].length += <int>n
        if kept and self.places[lowest(kept)].length == self.longest + n:
            self.longest += <int>n
        else:
            self.longest = 0

    cdef void credit(self, int n) noexcept nogil:
        """Count accepted tokens of the last draft for the store of its longest match."""
        if self.live:
            self.source.credit(self.places[lowest(self.live)].at, n)
