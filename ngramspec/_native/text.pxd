"""The committed text of one sequence, its contexts, and the places that may continue it."""

from libc.stdint cimport int32_t, uint64_t, uint8_t

from ngramspec._native.common cimport NONE, xxh64

cdef extern from *:
    """
    #define NGS_PREFETCH(p) __builtin_prefetch(p)
    """
    void prefetch_line "NGS_PREFETCH" (const void* p) nogil

cdef enum:
    CONTEXTS = 4            # the last one, two and three tokens, and the token before the last
    ORDERS = CONTEXTS - 1   # those without a gap; the one with index m has m + 1 tokens
    SKIP = ORDERS           # index of the one that skips the last token
    SKIP_SEED = 32          # its hash seed; the others use their n-gram's order
    LEADERS = 3         # continuations kept per context

cdef enum:
    MATCH = 0           # the longest known match of the text's end
    RESUME = 1          # where the last copy would continue after a substituted token
    NEAR = 2            # the best match around there, after an insertion or a deletion
    PLACES = 3
    FAR = 64            # maximum number of tokens compared to find a match's length
    RECENT = 64         # tokens kept
    RECENT_FADE_AT = 255

cdef struct Keys:           # keys of a position's contexts; 0 where the text is too short
    uint64_t of[CONTEXTS]

cdef struct Slot:       # 32 bytes, never across two cache lines; empty while total == 0
    uint64_t key
    int32_t token[LEADERS]      # continuations, the most recent first; NONE after the last
    uint8_t count[LEADERS]
    uint8_t total               # of all continuations, including those no longer kept
    int32_t last                # position of the most recent continuation

cdef struct Text:
    int32_t* tokens
    Py_ssize_t cap, n

cdef struct Place:
    const Text* text    # the text that it is in
    int32_t at          # position of the next token, or NONE: no place
    int32_t length      # tokens that matched before it; for a resumed copy, before it was left
    int32_t since       # resumed: tokens since the copy was left; near: distance from there

cdef struct Recent:
    int32_t token[RECENT]   # the most recent first; entries from ``used`` on are meaningless
    int32_t count[RECENT]   # fading count of each
    int32_t used
    int32_t total           # fading count of all tokens, including replaced ones


cdef inline Keys keys_of(const int32_t* end, Py_ssize_t n, uint64_t salt) noexcept nogil:
    """Keys of the contexts of a text of ``n`` tokens that ends before ``end``."""
    cdef Keys keys
    keys.of[0] = xxh64(end - 1, 1, 2, salt) if n >= 1 else 0
    keys.of[1] = xxh64(end - 2, 2, 3, salt) if n >= 2 else 0
    keys.of[2] = xxh64(end - 3, 3, 4, salt) if n >= 3 else 0
    keys.of[SKIP] = xxh64(end - 2, 1, SKIP_SEED, salt) if n >= 2 else 0
    return keys


cdef inline int leader(const Slot* c) noexcept nogil:
    """Index of the most frequent continuation; on ties, the more recent."""
    cdef int best = 0, i
    for i in range(1, LEADERS):
        if c.count[i] > c.count[best]:
            best = i
    return best


cdef inline int32_t token_at(const Place* place, int depth, bint wraps) noexcept nogil:
    """The token ``depth`` after the next one; at the text's end NONE, or from the place again."""
    cdef Py_ssize_t at = place.at + depth
    if at < place.text.n:
        return place.text.tokens[at]
    if wraps:
        return place.text.tokens[place.at + depth % (place.text.n - place.at)]
    return NONE


cdef class ContextTable:
    cdef Slot* slots            # open addressing on the key's lowest bits, at most 3/4 full
    cdef Py_ssize_t cap, used
    cdef readonly uint64_t salt

    cdef uint64_t key_of(self, object context, int seed) except? 0
    cdef Py_ssize_t place(self, uint64_t key) noexcept nogil
    cdef const Slot* find(self, uint64_t key) noexcept nogil
    cdef int count(self, uint64_t key, int32_t token, int32_t at) noexcept nogil
    cdef int grow(self) noexcept nogil
    cdef inline void prefetch(self, uint64_t key) noexcept nogil:
        """Start loading a context's slot."""
        prefetch_line(&self.slots[key & <uint64_t>(self.cap - 1)])


cdef class CommittedText:
    cdef Text text
    cdef ContextTable table
    cdef uint64_t salt          # the table's
    cdef int min_match          # shortest match to copy from; 0: no copies
    cdef Slot unigrams          # the most frequent tokens
    cdef Recent recent          # counted up to recent_n; updated when a tree needs it
    cdef Py_ssize_t recent_n
    cdef Keys tail              # of the contexts at the text's end
    cdef Place places[PLACES]

    cdef int append(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
    cdef void look_up(self, const Keys* keys, const Slot** known) noexcept nogil
    cdef void prefetch(self, const Keys* keys) noexcept nogil
    cdef void find_places(self, const Slot** known) noexcept nogil
    cdef void follow(self, Py_ssize_t n) noexcept nogil
    cdef void count_recent(self) noexcept nogil
