"""The tokens of one row of an engine's batch, compared and extended in one call each.

A row's text has a hash that grows with it: sum of (token + 1) * r**position modulo 2**64, for a
secret odd r. Equal hashes prove nothing, so texts are compared. One thread at a time.
"""

from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcmp, memcpy

cimport numpy as cnp

from ngramspec._native.common cimport (
    MAX_TOKENS, array_floats, array_tokens, process_salt, reserve,
)

cnp.import_array()

WHOLE = 1 << 14  # texts of up to this many tokens are compared completely
PART = 1 << 12  # tokens in each of the three parts that are compared of longer texts

cdef enum:
    WHOLE_TOKENS = 1 << 14
    PART_TOKENS = 1 << 12


cdef class TokenText:
    """Committed tokens and their hash.

    Every ``tokens`` is a contiguous int32 array of one dimension and is read up to ``length``.
    """

    cdef int32_t* text
    cdef Py_ssize_t capacity
    cdef readonly Py_ssize_t count
    cdef readonly uint64_t hash
    cdef uint64_t ratio, power  # r, r**count
    cdef Py_ssize_t turn

    def __cinit__(self):
        self.ratio = process_salt() | 1
        self.power = 1

    def __dealloc__(self):
        free(self.text)

    def begins(self, tokens, Py_ssize_t length):
        """Whether ``tokens`` begins with this text.

        Of a text longer than ``WHOLE``, three parts are compared: the beginning, the end, and a
        part that advances with every call, so that count / ``PART`` calls compare everything.

        Raises:
            TypeError, ValueError: not such an array, or a shorter one.
        """
        cdef const int32_t* other = read(tokens, length)
        cdef Py_ssize_t n = self.count
        if n > length:
            return False
        if n <= WHOLE_TOKENS:
            return same(self.text, other, 0, n)
        self.turn = (self.turn + PART_TOKENS) % n
        return (
            same(self.text, other, n - PART_TOKENS, n)
            and same(self.text, other, 0, PART_TOKENS)
            and same(self.text, other, self.turn, min(self.turn + PART_TOKENS, n))
        )

    def equals(self, tokens, Py_ssize_t length):
        """Whether this is exactly ``tokens``. Raises like ``begins``."""
        cdef const int32_t* other = read(tokens, length)
        return self.count == length and same(self.text, other, 0, length)

    def append(self, tokens, Py_ssize_t length, Py_ssize_t vocab):
        """Append what follows this text in ``tokens``, which begins with it.

        Returns:
            A copy of the new tokens, int32, without those outside 0..vocab - 1.

        Raises:
            TypeError, ValueError: not such an array, or a shorter one; nothing was appended.
            MemoryError, OverflowError: nothing was appended.
        """
        cdef const int32_t* other = read(tokens, length)
        cdef Py_ssize_t i, kept = 0, begin = self.count
        cdef cnp.npy_intp new = length - begin
        cdef cnp.ndarray known
        cdef int32_t* into
        if new < 0:
            raise ValueError(f"length must be >= {begin}, the text's, got {length}")
        if length > MAX_TOKENS:
            raise OverflowError(f"a text takes at most {MAX_TOKENS} tokens, got {length}")
        if reserve(<void**>&self.text, &self.capacity, length, sizeof(int32_t)):
            raise MemoryError("a row's text")
        known = cnp.PyArray_EMPTY(1, &new, cnp.NPY_INT32, 0)
        into = <int32_t*>cnp.PyArray_DATA(known)
        for i in range(begin, length):
            self.text[i] = other[i]
            self.hash += token_term(other[i], self.power)
            self.power *= self.ratio
            if 0 <= other[i] < vocab:
                into[kept] = other[i]
                kept += 1
        self.count = length
        return known if kept == new else known[:kept]

    def copy(self):
        """The tokens, int32 (count,)."""
        cdef cnp.npy_intp n = self.count
        cdef cnp.ndarray copied = cnp.PyArray_EMPTY(1, &n, cnp.NPY_INT32, 0)
        if n:
            memcpy(cnp.PyArray_DATA(copied), self.text, n * sizeof(int32_t))
        return copied

    def sizeof(self):
        """Bytes of the tokens."""
        return self.capacity * sizeof(int32_t)


def text_hash(tokens, Py_ssize_t length):
    """The hash of the first ``length`` tokens of an array. Raises like ``TokenText.begins``."""
    cdef const int32_t* other = read(tokens, length)
    cdef uint64_t ratio = process_salt() | 1, power = 1, total = 0
    cdef Py_ssize_t i
    for i in range(length):
        total += token_term(other[i], power)
        power *= ratio
    return total


def agreed(drafted, committed, Py_ssize_t begin, Py_ssize_t end):
    """The length of the common prefix of ``drafted`` and committed[begin:end].

    Raises:
        TypeError, ValueError: not contiguous int32 arrays, or ``end`` is out of range.
    """
    cdef const int32_t* mine
    cdef const int32_t* its = read(committed, end)
    cdef Py_ssize_t n = -1, i = 0
    mine = array_tokens(drafted, &n)
    if mine == NULL or begin < 0:
        raise TypeError(f"drafted must be a contiguous int32 array, got {type(drafted).__name__}")
    while i < n and begin + i < end and mine[i] == its[begin + i]:
        i += 1
    return i


def sound_chain(tokens, confidence, Py_ssize_t room, Py_ssize_t vocab):
    """Whether a chain is valid: ids in the vocabulary, at most ``room``, and probabilities.

    Args:
        tokens: any object.
        confidence: any object; None: there is none.
        room: maximum number of tokens.
        vocab: exclusive upper bound of the ids.
    """
    cdef Py_ssize_t n = 0, floats = 0, i
    cdef const int32_t* ids = array_tokens(tokens, &n)
    cdef const float* sure
    if ids == NULL or n > room:
        return False
    for i in range(n):
        if not 0 <= ids[i] < vocab:
            return False
    if confidence is None:
        return True
    sure = array_floats(confidence, &floats)
    if sure == NULL or floats != n:
        return False
    for i in range(n):
        if not 0.0 <= sure[i] <= 1.0:
            return False
    return True


cdef const int32_t* read(object tokens, Py_ssize_t length) except NULL:
    """The array's tokens, of which there must be ``length``, for reading under the GIL."""
    cdef Py_ssize_t n = 0
    cdef const int32_t* start = array_tokens(tokens, &n)
    if start == NULL:
        what = getattr(tokens, "dtype", type(tokens).__name__)
        raise TypeError(f"tokens must be a contiguous one-dimensional int32 array, got {what}")
    if not 0 <= length <= n:
        raise ValueError(f"length must lie in 0..{n}, got {length}")
    return start


cdef inline uint64_t token_term(int32_t token, uint64_t power) noexcept nogil:
    return (<uint64_t><uint32_t>token + 1) * power


cdef inline bint same(
    const int32_t* one, const int32_t* other, Py_ssize_t begin, Py_ssize_t end
) noexcept nogil:
    return end <= begin or memcmp(one + begin, other + begin, (end - begin) * sizeof(int32_t)) == 0
