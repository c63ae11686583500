"""Look-ups in a corpus: the longest match, its places, and their continuations.

A look-up descends through the sampled keys (one or two cache misses below the levels that stay in
cache), then compares at most ``STEP`` places with the text, loaded at once. Reading on from a place
is one miss. Every loop is bounded, every position is checked before it is read, and every code
before it is used as a token. A broken corpus therefore gives wrong drafts at worst. Nothing is
written, so any number of threads may use it. No memory is allocated.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t

import numpy as np

from ngramspec._native.common cimport NONE, array_tokens, check_ids, start_of, token_view
from ngramspec._native.contexts cimport prefetch_line
from ngramspec._native.store_codes cimport (
    Key, Query, code_at, common, count_keys, key_tokens, pack, read_codes, set_last,
)
from ngramspec._native.store_source cimport Found, StoreSource
from ngramspec._native.store_tally cimport SEPARATOR, Tally, begin, best, count_in

STRIDE = STEP


cdef class CorpusIndex(StoreSource):
    """The look-ups over one corpus's sections.

    Args:
        sections: text, places, next, keys, wide, slots: bytes-like, aligned to eight bytes, and
            held while this object lives.
        width: bytes per code, 2 or 3.
        limit: exclusive upper bound of the token ids.

    Raises:
        ValueError: the sections' sizes are inconsistent.
    """

    def __cinit__(self, sections, width, limit):
        cdef int i
        if width not in (2, 3):
            raise ValueError(f"width must be 2 or 3, got {width}")
        most = (1 << (16 if width == 2 else 21)) - 1
        if not 0 < limit <= most:
            raise ValueError(f"limit must be in 1..{most} with width={width}, got {limit}")
        if len(sections) != 6:
            raise ValueError(f"a corpus has 6 sections, got {len(sections)}")
        for i in range(6):
            PyObject_GetBuffer(sections[i], &self.sections[i], PyBUF_SIMPLE)
            self.held += 1
            if <uintptr_t>self.sections[i].buf % 8:
                raise ValueError(f"section {i} is misaligned")
        self.width, self.limit = width, limit
        self.n = self.size(0, width)
        self.m = self.size(1, 4)
        if <uint64_t>self.size(2, width) != self.m:
            raise ValueError(f"next has {self.size(2, width)} entries for {self.m} places")
        if self.m > self.n or self.n >= <uint64_t>1 << 31:
            raise ValueError(f"{self.m} places in a text of {self.n}")
        self.wide_n, self.slot_n = self.size(4, sizeof(Wide)), self.size(5, 4)
        if self.slot_n & (self.slot_n - 1) or self.slot_n <= self.wide_n:
            raise ValueError(f"{self.slot_n} slots for {self.wide_n} wide intervals")
        self.text = <const uint8_t*>self.sections[0].buf
        self.places = <const uint32_t*>self.sections[1].buf
        self.next = <const uint8_t*>self.sections[2].buf
        self.wides = <const Wide*>self.sections[4].buf
        self.slots = <const uint32_t*>self.sections[5].buf
        self.lay_keys()

    def __dealloc__(self):
        for i in range(self.held):
            PyBuffer_Release(&self.sections[i])

    cdef Py_ssize_t size(self, int section, int each) except -1:
        cdef Py_ssize_t n = self.sections[section].len
        if n % each:
            raise ValueError(f"section {section} has {n} bytes, no multiple of {each}")
        return n // each

    cdef int lay_keys(self) except -1:
        """Find the levels: each has every 16th entry of the one below."""
        cdef uint64_t n = self.m, total = 0
        while n > STEP:
            n = (n + STEP - 1) // STEP
            self.key_n[self.levels] = n
            total += n
            self.levels += 1
        if <uint64_t>self.size(3, sizeof(Key)) != total:
            raise ValueError(f"{self.size(3, sizeof(Key))} keys, {total} are needed")
        total = 0
        for i in range(self.levels):
            self.keys[i] = <const Key*>self.sections[3].buf + total
            total += self.key_n[i]
        return 0

    def __len__(self):
        """Number of places."""
        return self.m

    def longest(self, context):
        """The longest match of the end of a context: (length, first, end), or (0, 0, 0).

        Args:
            context: int32 (n,); only its last 64 tokens are used.
        """
        cdef Interval found = self.found(context)
        return found.length, found.first, found.end

    def continuations(self, context, int most=LEADING):
        """What follows the longest match: ([(token, count), ...], length), most frequent first.

        Up to 128 places are counted. For more, precomputed counts are returned, at most 8; if there
        are none, 128 places evenly spread are counted and scaled up.

        Args:
            context: int32 (n,).
            most: maximum number of continuations, 1..128.
        """
        cdef Interval found = self.found(context)
        cdef int32_t tokens[WIDE]
        cdef int64_t counts[WIDE]
        cdef int i, n
        if not 1 <= most <= WIDE:
            raise ValueError(f"most must be in 1..{WIDE}, got {most}")
        n = self.leaders(&found, tokens, counts, most) if found.length else 0
        return [(tokens[i], counts[i]) for i in range(n)], found.length

    def place(self, int64_t i):
        """The ``i``-th place: a position in the text, or -1 if the entry is broken."""
        if not 0 <= i < <int64_t>self.m:
            raise IndexError(f"place must be in 0..{<int64_t>self.m - 1}, got {i}")
        return self.places[i] if 0 < self.places[i] < self.n else -1

    def tokens_at(self, int64_t at, int most):
        """At most ``most`` tokens from a position up to the document's end: int32 (n,)."""
        if most < 0 or not 0 <= at < <int64_t>self.n:
            raise ValueError(f"cannot read {most} tokens at {at} of {self.n}")
        most = <int>min(most, <int64_t>self.n - at)
        tokens = np.empty(most, np.int32)
        cdef int32_t[::1] into = tokens
        return tokens[:self.read(at, &into[0], most)] if most else tokens

    def sizeof(self):
        """Bytes allocated, without the sections."""
        return sizeof(CorpusIndex)

    cdef Interval found(self, context) except *:
        """The longest match of a context passed from Python."""
        cdef const int32_t[::1] view
        cdef Py_ssize_t n = 0
        cdef const int32_t* tokens = array_tokens(context, &n)
        cdef Query query
        cdef Interval found
        if tokens == NULL:
            view = token_view(context, "context")
            tokens, n = start_of(view), view.shape[0]
        check_ids(tokens, n, max(n - DEEPEST, 0))
        self.ask(tokens + n, n, &query)  # under the GIL: nothing else holds the tokens
        self.find(&query, &found)
        return found

    cdef int ask(self, const int32_t* end, Py_ssize_t have, Query* query) noexcept nogil:
        """Prepare a search for the last of ``have`` tokens before ``end``; how many it uses."""
        cdef int i = 0
        query.end = end
        query.key.high = query.key.low = 0
        while i < have and i < DEEPEST and end[-1 - i] < self.limit:
            if i < key_tokens(self.width):
                query.key = pack(query.key, self.width, i, end[-1 - i])
            i += 1
        query.have = i
        set_last(query, self.width)
        return i

    cdef int32_t before(self, uint64_t place, int i) noexcept nogil:
        """The ``i``-th token before a place, counted from 0; SEPARATOR if there is none."""
        cdef int64_t at = <int64_t>self.places[place] - 1 - i
        if not 0 <= at < <int64_t>self.n:
            return SEPARATOR
        return code_at(self.text, self.width, self.limit, at)

    cdef int agreement(self, const Query* q, int64_t place, int most) noexcept nogil:
        """How many of the context's last ``most`` tokens precede a place; 0 outside the text."""
        if not 0 <= place < <int64_t>self.m or self.places[place] > self.n:
            return 0
        return common(q, self.text, self.width, self.places[place], most)

    cdef bint precedes(self, const Query* q, uint64_t place, int most, bint ties) noexcept nogil:
        """Whether a place sorts before those of the context's last ``most`` tokens.

        With ``ties``: or is one of them.
        """
        cdef int same = self.agreement(q, place, most)
        return ties if same == most else self.before(place, same) < q.end[-1 - same]

    cdef uint64_t narrow(
        self, const Query* q, int level, uint64_t low, uint64_t high, int most, bint ties
    ) noexcept nogil:
        """The first of at most ``STEP`` sampled keys whose place does not precede."""
        cdef uint64_t middle, below, equal, apart = <uint64_t>1 << (4 * (level + 1))
        count_keys(self.keys[level], low, high, q, self.width, most, &below, &equal)
        if most <= key_tokens(self.width):
            return equal if ties else below
        while below < equal:
            middle = (below + equal) >> 1
            if self.precedes(q, middle * apart, most, ties):
                below = middle + 1
            else:
                equal = middle
        return below

    cdef void bound(
        self, const Query* q, int most, int first, int behind, int64_t* into
    ) noexcept nogil:
        """Find an interval's first place (side 0) and end (1), for sides first..behind - 1.

        What the two searches wait for is loaded together.
        """
        cdef uint64_t low[2]
        cdef uint64_t high[2]
        cdef uint64_t middle
        cdef int level, side
        for side in range(first, behind):
            low[side] = 0
            high[side] = self.key_n[self.levels - 1] if self.levels else self.m
        for level in range(self.levels - 1, -1, -1):
            for side in range(first, behind):
                middle = self.narrow(q, level, low[side], high[side], most, side)
                # it sorts after entry middle - 1 of this level, and not after entry middle
                high[side] = min(middle * STEP, self.key_n[level - 1] if level else self.m)
                low[side] = (middle - 1) * STEP + 1 if middle else 0
        for side in range(first, behind):
            for middle in range(low[side], high[side]):  # loads what will be compared
                self.prefetch(middle)
        for side in range(first, behind):
            while low[side] < high[side]:
                middle = (low[side] + high[side]) >> 1
                if self.precedes(q, middle, most, side):
                    low[side] = middle + 1
                else:
                    high[side] = middle
            into[side] = low[side]

    cdef void prefetch(self, int64_t place) noexcept nogil:
        """Start loading the text around a place."""
        if 0 <= place < <int64_t>self.m:
            prefetch_line(self.text + <uint64_t>self.width * self.places[place] - 8)

    cdef int find(self, const Query* q, Interval* found) noexcept nogil:
        """Find the places of the longest match; return its length, 0 without one."""
        cdef Interval none
        found.first = found.end = 0
        found.length = 0
        if q.have == 0 or self.m == 0:
            return 0
        self.bound(q, q.have, 0, 1, &none.first)
        none.end = none.first
        self.around(q, &none, found)
        return found.length

    cdef void around(self, const Query* q, const Interval* inner, Interval* found) noexcept nogil:
        """The places next to an interval that agree longest, including it; length 0: none."""
        cdef int64_t bounds[2]
        cdef int left, right, length
        self.prefetch_edges(inner.first, inner.end)
        left = self.agreement(q, inner.first - 1, q.have)
        right = self.agreement(q, inner.end, q.have)
        found.length = length = max(left, right)
        found.first = found.end = 0
        if length == 0:
            return
        bounds[0] = self.edge(q, inner.first, length, -1) if left == length else inner.first
        bounds[1] = self.edge(q, inner.end, length, 1) if right == length else inner.end
        if bounds[0] == NONE or bounds[1] == NONE:
            self.bound(q, length, bounds[0] != NONE, 1 + (bounds[1] == NONE), bounds)
        found.first, found.end = bounds[0], bounds[1]

    cdef void prefetch_edges(self, int64_t first, int64_t end) noexcept nogil:
        """Start loading what ``edge`` may compare around places."""
        cdef int64_t apart = 1
        while apart <= 2 * GALLOP:
            self.prefetch(first - apart)
            self.prefetch(end - 1 + apart)
            apart *= 2

    cdef int64_t edge(self, const Query* q, int64_t at, int length, int side) noexcept nogil:
        """The end of the places next to ``at`` that agree for ``length`` tokens; NONE: far away."""
        cdef int64_t inside = at if side > 0 else at - 1    # agrees
        cdef int64_t outside, middle, apart = 1
        while True:
            outside = inside + side * apart
            if self.agreement(q, outside, length) < length:
                break
            if apart == GALLOP:
                return NONE
            inside = outside
            apart *= 2
        while outside - inside > 1 or inside - outside > 1:
            middle = (inside + outside) >> 1
            if self.agreement(q, middle, length) < length:
                outside = middle
            else:
                inside = middle
        return inside + 1 if side > 0 else inside

    cdef int leaders(
        self, const Interval* found, int32_t* tokens, int64_t* counts, int most
    ) noexcept nogil:
        """The ``most`` most frequent continuations; on ties, the lower id first. Their number."""
        cdef int64_t width = found.end - found.first
        cdef const Wide* wide = NULL
        cdef Tally tally
        cdef int64_t i
        cdef int n = 0
        if width <= WIDE:
            begin(&tally)
            for i in range(found.first, min(found.end, <int64_t>self.m)):
                count_in(&tally, code_at(self.next, self.width, self.limit, i))
            return best(&tally, tokens, counts, most, WIDE)
        wide = find_wide(self.wides, self.slots, self.wide_n, self.slot_n, found)
        if wide == NULL:
            begin(&tally)
            for i in range(WIDE):
                count_in(&tally, code_at(
                    self.next, self.width, self.limit, found.first + i * width // WIDE
                ))
            return best(&tally, tokens, counts, most, width)
        while n < most and n < LEADING and wide.count[n]:
            if wide.token[n] >= <uint32_t>self.limit:
                break
            tokens[n] = <int32_t>wide.token[n]
            counts[n] = wide.count[n]
            n += 1
        return n

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil:
        """Places of the longest match, evenly spread, then of the next shorter ones."""
        cdef Query q
        cdef Interval inner, outer
        cdef int n = 0, _k
        inner.first = inner.end = 0
        inner.length = 0
        if self.ask(end, have, &q) == 0 or self.find(&q, &outer) == 0:
            return 0
        for _k in range(BACKOFFS):
            n += self.spread(&outer, &inner, into + n, most - n)
            inner = outer
            if n == most:
                break
            self.around(&q, &inner, &outer)
            if not 0 < outer.length < inner.length:  # not shorter: the places are out of order
                break
        return n

    cdef int spread(
        self, const Interval* over, const Interval* but, Found* into, int most
    ) noexcept nogil:
        """At most ``most`` evenly spread places of an interval, excluding an interval inside it."""
        cdef int64_t hole = but.end - but.first, width = over.end - over.first - hole
        cdef int64_t i, next = over.first   # over.first + k * width // n
        cdef int n = <int>min(<int64_t>most, width), rest = 0, k
        for k in range(n):
            i = next + hole if hole and next >= but.first else next
            next += width // n
            rest += <int>(width % n)
            if rest >= n:
                rest -= n
                next += 1
            prefetch_line(self.text + <uint64_t>self.width * self.places[i])
            into[k].at = self.places[i]
            into[k].length = over.length
        return n

    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil:
        """Copy tokens from a position up to a separator; return their number."""
        if not 0 <= at < <int64_t>self.n:
            return 0
        most = <int>min(<int64_t>most, <int64_t>self.n - at)
        return read_codes(self.text, self.width, self.limit, at, into, most)
