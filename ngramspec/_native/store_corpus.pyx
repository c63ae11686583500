"""A corpus in a mapped file: its tokens, and every place in them sorted by the tokens before it.

    text      N codes: the documents, with a separator before the first and after each
    places    M positions q in the text, sorted by the tokens before q, read backwards
    keys      the last tokens before every 16th place, packed; every 16th of those; and so on

A code has 2 or 3 bytes, the lowest first. Codes from ``limit`` on are not tokens. The places after
one context are an interval, and those after a longer one lie inside it. No place has a separator
before it or at it, so a match never spans documents and always has a continuation.

A look-up descends through the sampled keys (one or two cache misses below the levels that stay in
cache), then compares at most ``STEP`` places with the text, loaded at once. Reading on from a place
is one miss. Every loop is bounded, every position is checked before it is read, and every code
before it is used as a token. A broken corpus therefore gives wrong drafts at worst. Nothing is
written, so any number of threads may use it. No memory is allocated.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer, Py_buffer
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t, uint8_t, uintptr_t

import numpy as np

from ngramspec._native.common cimport NONE, prefetch_line
from ngramspec._native.store_source cimport SEPARATOR, Found, StoreSource

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t ngs_eight_before(const uint8_t* end) {
        uint64_t bytes;
        memcpy(&bytes, end - 8, 8);
        return bytes;
    }
    """
    int high_zeros "__builtin_clzll" (uint64_t x) noexcept nogil     # for x > 0
    uint64_t eight_before "ngs_eight_before" (const uint8_t* end) noexcept nogil

cdef enum:
    DEEPEST = 64        # maximum number of a context's tokens that are compared
    STEP = 16           # places between two sampled keys, keys between two of the next level
    LEVELS = 8          # enough for 16 ** 8 places
    SECTIONS = 3        # of a corpus: text, places, keys
    GALLOP = 8          # places inspected in steps; beyond, an edge is searched from the top
    BACKOFFS = 3        # nested intervals that places are taken from

cdef struct Key:        # the last tokens before a place, the last one in the highest bits
    uint64_t high
    uint64_t low

cdef struct Query:
    const int32_t* end  # after the context's last token
    int have            # number of its tokens, cut before one that the corpus cannot contain
    Key key
    uint64_t last       # the codes of the last two to four tokens, as stored in the text
    int in_last         # number of tokens in ``last``

cdef struct Interval:
    int64_t first, end  # places
    int32_t length      # tokens before each that agree

STRIDE = STEP


cdef inline int32_t raw_code(const uint8_t* codes, int width, uint64_t i) noexcept nogil:
    """The ``i``-th code, unchecked."""
    cdef const uint8_t* c = codes + <uint64_t>width * i
    cdef int32_t code = c[0] | c[1] << 8
    if width == 3:
        code |= c[2] << 16
    return code


cdef inline int32_t code_at(
    const uint8_t* codes, int width, int32_t limit, uint64_t i
) noexcept nogil:
    """The ``i``-th code: a token id below ``limit``, or SEPARATOR."""
    cdef int32_t code = raw_code(codes, width, i)
    return code if code < limit else SEPARATOR


cdef inline Key pack(Key key, int width, int i, int32_t code) noexcept nogil:
    """The key with its ``i``-th token from the end added, if it has room for it."""
    cdef int each = 4 if width == 2 else 3
    cdef int bits = 16 if width == 2 else 21
    cdef uint64_t value = <uint64_t>code & ((<uint64_t>1 << bits) - 1)
    if i < each:
        key.high |= value << (64 - bits * (i + 1))
    else:
        key.low |= value << (64 - bits * (i - each + 1))
    return key


cdef inline int key_tokens(int width) noexcept nogil:
    return 8 if width == 2 else 6


cdef inline int common(
    const Query* q, const uint8_t* codes, int width, uint64_t at, int most
) noexcept nogil:
    """How many of the context's last ``most`` tokens, at most ``have``, precede ``at``."""
    cdef uint64_t differs
    cdef int same = 0, zeros
    if at >= 4:  # so that eight bytes precede it
        same = q.in_last
        differs = eight_before(codes + width * at) ^ q.last
        if differs:
            zeros = high_zeros(differs)
            same = min(same, zeros >> 4 if width == 2 else (zeros >= 24) + (zeros >= 48))
        if same < q.in_last:
            return min(same, most)
    if at < <uint64_t>most:
        most = <int>at
    while same < most and raw_code(codes, width, at - 1 - same) == q.end[-1 - same]:
        same += 1
    return min(same, most)


cdef inline int read_codes(
    const uint8_t* codes, int width, int32_t limit, uint64_t at, int32_t* into, int n
) noexcept nogil:
    """Copy ``n`` codes as tokens, up to the first that is not a token; return their number."""
    cdef const uint16_t* narrow = <const uint16_t*>codes + at
    cdef int32_t highest = 0
    cdef int i
    if width == 2:
        for i in range(n):
            into[i] = narrow[i]
    else:
        for i in range(n):
            into[i] = raw_code(codes, 3, at + i)
    for i in range(n):
        highest = max(highest, into[i])
    if highest < limit:
        return n
    i = 0
    while into[i] < limit:
        i += 1
    return i


cdef inline void count_keys(
    const Key* keys, uint64_t low, uint64_t high, const Query* q, int width, int most,
    uint64_t* below, uint64_t* equal
) noexcept nogil:
    """Find the position of a context's last ``most`` tokens among the sorted keys in low..high - 1.

    ``below`` is set to the first key that is not lower, ``equal`` to the first that is higher. All
    keys are compared, which costs less than a binary search's branch mispredictions.
    """
    cdef uint64_t i, here_high, here_low, top = ~<uint64_t>0, bottom = 0
    cdef int each = key_tokens(width) // 2, bits = 16 if width == 2 else 21
    # the bits of the key that are compared
    if most < each:
        top <<= 64 - bits * most
    elif most > each:
        bottom = ~<uint64_t>0 << (64 - bits * (min(most, 2 * each) - each))
    cdef uint64_t wanted_high = q.key.high & top, wanted_low = q.key.low & bottom
    below[0] = equal[0] = low
    for i in range(low, high):
        here_high, here_low = keys[i].high & top, keys[i].low & bottom
        below[0] += (here_high < wanted_high) | (
            (here_high == wanted_high) & (here_low < wanted_low)
        )
        equal[0] += (here_high < wanted_high) | (
            (here_high == wanted_high) & (here_low <= wanted_low)
        )


cdef class CorpusIndex(StoreSource):
    """The look-ups over one corpus's sections: text, places and keys.

    They are bytes-like and aligned to eight bytes. A code has ``width`` bytes, 2 or 3.
    """

    cdef Py_buffer sections[SECTIONS]   # held while this object lives
    cdef int held
    cdef const uint8_t* text
    cdef const uint32_t* places
    cdef const Key* keys[LEVELS]
    cdef uint64_t key_n[LEVELS]
    cdef int levels
    cdef readonly uint64_t n, m         # number of codes in the text, and of places
    cdef readonly int width             # bytes per code
    cdef readonly int32_t limit         # exclusive upper bound of the token ids

    def __cinit__(self, sections, width, limit):
        cdef int i
        if width not in (2, 3):
            raise ValueError(f"width must be 2 or 3, got {width}")
        most = (1 << (16 if width == 2 else 21)) - 1
        if not 0 < limit <= most:
            raise ValueError(f"limit must be in 1..{most} with width={width}, got {limit}")
        if len(sections) != SECTIONS:
            raise ValueError(f"a corpus has {SECTIONS} sections, got {len(sections)}")
        for i in range(SECTIONS):
            PyObject_GetBuffer(sections[i], &self.sections[i], PyBUF_SIMPLE)
            self.held += 1
            if <uintptr_t>self.sections[i].buf % 8:
                raise ValueError(f"section {i} is misaligned")
        self.width, self.limit = width, limit
        self.n = self.size(0, width)
        self.m = self.size(1, 4)
        if self.m > self.n or self.n >= <uint64_t>1 << 31:
            raise ValueError(f"{self.m} places in a text of {self.n}")
        self.text = <const uint8_t*>self.sections[0].buf
        self.places = <const uint32_t*>self.sections[1].buf
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
        if <uint64_t>self.size(2, sizeof(Key)) != total:
            raise ValueError(f"{self.size(2, sizeof(Key))} keys, {total} are needed")
        total = 0
        for i in range(self.levels):
            self.keys[i] = <const Key*>self.sections[2].buf + total
            total += self.key_n[i]
        return 0

    def __len__(self):
        """Number of places."""
        return self.m

    def sizeof(self):
        """Bytes allocated, without the sections."""
        return sizeof(CorpusIndex)

    cdef void ask(self, const int32_t* end, Py_ssize_t have, Query* query) noexcept nogil:
        """Prepare a search for the last of ``have`` tokens before ``end``."""
        cdef int i = 0
        query.end = end
        query.key.high = query.key.low = 0
        while i < have and i < DEEPEST and end[-1 - i] < self.limit:
            if i < key_tokens(self.width):
                query.key = pack(query.key, self.width, i, end[-1 - i])
            i += 1
        query.have = i
        query.last = 0  # compares several of the last tokens at once
        query.in_last = min(i, 4 if self.width == 2 else 2)
        for i in range(query.in_last):
            query.last |= <uint64_t>end[-1 - i] << (64 - 8 * self.width * (i + 1))

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

    cdef void around(self, const Query* q, const Interval* inner, Interval* found) noexcept nogil:
        """The places next to an interval that agree longest, including it; length 0: none."""
        cdef int64_t bounds[2]
        cdef int64_t apart = 1
        cdef int left, right, length
        while apart <= 2 * GALLOP:  # loads what ``edge`` may compare
            self.prefetch(inner.first - apart)
            self.prefetch(inner.end - 1 + apart)
            apart *= 2
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

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil:
        """Places of the longest match, evenly spread, then of the next shorter ones."""
        cdef Query q
        cdef Interval inner, outer
        cdef int n = 0, _k
        self.ask(end, have, &q)
        if q.have == 0 or self.m == 0:
            return 0
        self.bound(&q, q.have, 0, 1, &inner.first)
        inner.end = inner.first
        inner.length = DEEPEST + 1  # longer than any match
        for _k in range(BACKOFFS):
            self.around(&q, &inner, &outer)
            if not 0 < outer.length < inner.length:  # not shorter: the places are out of order
                break
            n += self.spread(&outer, &inner, into + n, most - n)
            inner = outer
            if n == most:
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
            into[k].length, into[k].kin = over.length, 0
        return n

    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil:
        """Copy tokens from a position up to a separator; return their number."""
        if not 0 <= at < <int64_t>self.n:
            return 0
        most = <int>min(<int64_t>most, <int64_t>self.n - at)
        return read_codes(self.text, self.width, self.limit, at, into, most)


def keys(const int32_t[::1] text, const uint32_t[::1] places, int width, int step):
    """The keys of every ``step``-th of the sorted places in a text: uint64 (n, 2)."""
    cdef Py_ssize_t i, k, n = (places.shape[0] + step - 1) // step
    packed = np.empty((n, 2), np.uint64)
    cdef uint64_t[:, ::1] into = packed
    cdef Key key
    cdef int j
    cdef int32_t code
    with nogil:
        for i in range(n):
            key.high = key.low = 0
            k = places[i * step]
            for j in range(key_tokens(width)):
                code = text[k - 1 - j] if k > j else <int32_t>SEPARATOR
                key = pack(key, width, j, code)
                if code == SEPARATOR:
                    break
            into[i, 0], into[i, 1] = key.high, key.low
    return packed


def check_corpus(CorpusIndex corpus not None):
    """Walk every place and key; raise an AssertionError if one is broken."""
    cdef uint64_t i, k
    cdef int j, level
    cdef Key key
    cdef uint64_t apart
    for i in range(corpus.m):
        q = corpus.places[i]
        assert 0 < q < corpus.n, f"place {i} is outside the text"
        assert corpus.before(i, 0) != SEPARATOR, f"place {i} has nothing before it"
        token = code_at(corpus.text, corpus.width, corpus.limit, q)
        assert token != SEPARATOR, f"place {i} has nothing behind it"
        assert i == 0 or ordered(corpus, i), f"place {i} is out of order"
    for level in range(corpus.levels):
        apart = <uint64_t>STEP ** (level + 1)
        for k in range(corpus.key_n[level]):
            key.high = key.low = 0
            for j in range(key_tokens(corpus.width)):
                code = corpus.before(k * apart, j)
                key = pack(key, corpus.width, j, code)
                if code == SEPARATOR:
                    break
            assert key.high == corpus.keys[level][k].high, f"key {k} of level {level} is another"
            assert key.low == corpus.keys[level][k].low, f"key {k} of level {level} is another"


cdef bint ordered(CorpusIndex corpus, uint64_t i):
    """Whether place i - 1 does not sort after place i by the compared tokens."""
    cdef int j
    cdef int32_t left, right
    for j in range(DEEPEST):
        left, right = corpus.before(i - 1, j), corpus.before(i, j)
        if left != right:
            return left < right
        if left == SEPARATOR:
            return True
    return True
