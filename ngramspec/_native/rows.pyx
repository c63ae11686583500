"""The rows of a batch: their texts, checks of their drafts, and how much of each is worth its cost.

A row's text has a hash that grows with it: sum of (token + 1) * r**position modulo 2**64, for a
secret odd r. Equal hashes prove nothing, so texts are compared. One thread at a time.

The drafts' lengths follow theorem 3.8 of Leviathan et al. (2023) with a probability for each token,
for a batch in which the cost of a step depends on the total number of its positions.
"""

from libc.math cimport NAN, isnan
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy

cimport numpy as cnp

from ngramspec._native.common cimport (
    MAX_TOKENS, array_data, floats_of, process_salt, reserve, tokens_of,
)

cnp.import_array()

cdef enum:
    WHOLE_TOKENS = 1 << 14  # texts of up to this many tokens are compared completely
    PART_TOKENS = 1 << 12   # tokens in each of the three parts that are compared of longer texts

cdef struct RowDraft:
    const float* sure
    Py_ssize_t count
    Py_ssize_t taken
    Py_ssize_t kept
    double reach  # P(its next token is accepted)
    double weight

WHOLE, PART = WHOLE_TOKENS, PART_TOKENS


cdef class TokenText:
    """Committed tokens and their hash.

    Every ``tokens`` is a contiguous int32 array of one dimension and is read up to ``length``; a
    TypeError or ValueError says that it is none, or shorter.
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
        """Whether this is exactly ``tokens``."""
        cdef const int32_t* other = read(tokens, length)
        return self.count == length and same(self.text, other, 0, length)

    def append(self, tokens, Py_ssize_t length, Py_ssize_t vocab):
        """Append what follows this text in ``tokens``, which begins with it.

        Returned is a copy of the new tokens, int32, without those outside 0..vocab - 1. After an
        error nothing was appended.
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
    """The hash of the first ``length`` tokens of an array, see TokenText."""
    cdef const int32_t* other = read(tokens, length)
    cdef uint64_t ratio = process_salt() | 1, power = 1, total = 0
    cdef Py_ssize_t i
    for i in range(length):
        total += token_term(other[i], power)
        power *= ratio
    return total


def agreed(drafted, committed, Py_ssize_t begin, Py_ssize_t end):
    """The length of the common prefix of ``drafted`` and committed[begin:end], int32 each."""
    cdef Py_ssize_t n = 0, i = 0
    cdef const int32_t* its = read(committed, end)
    cdef const int32_t* mine = tokens_of(drafted, &n, "drafted")
    if begin < 0:
        raise ValueError(f"begin must be >= 0, got {begin}")
    while i < n and begin + i < end and mine[i] == its[begin + i]:
        i += 1
    return i


def sound_chain(tokens, confidence, Py_ssize_t room, Py_ssize_t vocab):
    """Whether a chain is valid: at most ``room`` ids below ``vocab``, and probabilities or None.

    ``tokens`` and ``confidence`` may be any objects.
    """
    cdef Py_ssize_t n = 0, floats = 0, i
    cdef const int32_t* ids = <const int32_t*>array_data(tokens, cnp.NPY_INT32, &n)
    cdef const float* sure
    if ids == NULL or n > room:
        return False
    for i in range(n):
        if not 0 <= ids[i] < vocab:
            return False
    if confidence is None:
        return True
    sure = <const float*>array_data(confidence, cnp.NPY_FLOAT32, &floats)
    if sure == NULL or floats != n:
        return False
    for i in range(n):
        if not 0.0 <= sure[i] <= 1.0:
            return False
    return True


cdef const int32_t* read(object tokens, Py_ssize_t length) except NULL:
    """The array's tokens, of which there must be ``length``, for reading under the GIL."""
    cdef Py_ssize_t n = 0
    cdef const int32_t* start = tokens_of(tokens, &n)
    if not 0 <= length <= n:
        raise ValueError(f"length must lie in 0..{n}, got {length}")
    return start


cdef inline uint64_t token_term(int32_t token, uint64_t power) noexcept nogil:
    return (<uint64_t><uint32_t>token + 1) * power


cdef inline bint same(
    const int32_t* one, const int32_t* other, Py_ssize_t begin, Py_ssize_t end
) noexcept nogil:
    return end <= begin or memcmp(one + begin, other + begin, (end - begin) * sizeof(int32_t)) == 0


def best_prefix_lengths(
    confidences, const float[::1] curve not None, bint chains=True, double lasting=1.0,
    weights=None, double rate=NAN,
):
    """The lengths of a batch's drafts that maximize the value of its expected tokens, a list.

    The most likely tokens of all rows are taken first; on ties, those of the earlier row. If
    several lengths have the same value, the longest drafts are taken.

    Args:
        confidences: for each row a contiguous float32 array (n,). With ``chains``: P(accepted |
            those before are) of its tokens; otherwise P(accepted) of its nodes, in descending
            order.
        curve: float32 (m,), m >= 1: curve[d] is the cost of a step with d draft tokens in total. No
            more than m - 1 are drafted.
        lasting: for chains, P(a token is still needed | the one before it is).
        weights: floats, the value of a token of each row; None: 1.
        rate: a row's tokens per cost over all steps. The value is the expected tokens minus what
            the cost of the step yields at this rate. NaN: the value is this step's tokens per cost.
    """
    cdef Py_ssize_t rows = len(confidences), row, total
    cdef Py_ssize_t most = curve.shape[0] - 1
    cdef double expected = rows, value, highest
    cdef RowDraft* all_rows
    cdef RowDraft* next_row
    if most < 0:
        raise ValueError("curve must have one entry or more, got 0")
    if rows == 0:
        return []
    if weights is not None and len(weights) != rows:
        raise ValueError(f"weights must be as many as rows, {rows}, got {len(weights)}")
    held = tuple(confidences)  # keeps the arrays alive
    all_rows = <RowDraft*>malloc(rows * sizeof(RowDraft))
    if all_rows == NULL:
        raise MemoryError("a batch's rows")
    try:
        for row in range(rows):
            begin(&all_rows[row], held[row])
            if chains:
                all_rows[row].reach *= lasting
            if weights is not None:
                all_rows[row].weight = weights[row]
        rate *= rows
        highest = worth(expected, curve[0], rate)
        for total in range(1, most + 1):
            next_row = likeliest(all_rows, rows)
            if next_row == NULL:
                break
            expected += next_row.reach * next_row.weight
            next_row.taken += 1
            if next_row.taken < next_row.count:
                next_row.reach = (
                    next_row.reach * next_row.sure[next_row.taken] * lasting
                    if chains
                    else next_row.sure[next_row.taken]
                )
            value = worth(expected, curve[total], rate)
            if value >= highest:
                highest = value
                for row in range(rows):
                    all_rows[row].kept = all_rows[row].taken
        return [all_rows[row].kept for row in range(rows)]
    finally:
        free(all_rows)


def may_pay(
    const float[::1] curve not None, Py_ssize_t rows, Py_ssize_t k, double rate=1.0
):
    """Whether at most ``k`` draft tokens per row, certainly accepted, would be worth their cost.

    ``curve`` and ``rate`` are those of ``best_prefix_lengths``.
    """
    cdef Py_ssize_t drafted
    for drafted in range(1, min(curve.shape[0], rows * k + 1)):
        if drafted > rate * rows * (<double>curve[drafted] - 1.0):
            return True
    return False


def generous_cost(const float[::1] curve not None, Py_ssize_t rows, Py_ssize_t k):
    """A row's cost, float32 (k + 2,), with which sessions omit what pays off in no batch.

    It is a quarter of the lowest cost that a token adds. Which of the remaining tokens are worth
    verifying depends on the other rows and is decided jointly. The arguments are ``may_pay``'s.
    """
    cdef cnp.npy_intp size = k + 2
    cdef Py_ssize_t i
    cdef double least = 0.0, slope
    cdef float each
    cdef float* cost
    if curve.shape[0] < 1 or k < 0:
        raise ValueError(f"curve must have one entry or more and k be >= 0, got k={k}")
    for i in range(1, curve.shape[0]):
        slope = (curve[i] - curve[0]) / <double>i
        least = slope if i == 1 else min(least, slope)
    each = <float>(0.25 * rows * max(least, 0.0))
    found = cnp.PyArray_EMPTY(1, &size, cnp.NPY_FLOAT32, 0)
    cost = <float*>cnp.PyArray_DATA(found)
    cost[0] = cost[1] = 1.0
    for i in range(1, k + 1):
        cost[i + 1] = <float>1.0 + each * <float>i
    return found


cdef inline double worth(double expected, double cost, double rate) noexcept nogil:
    """The value of a step, see ``best_prefix_lengths``. ``rate`` is the sum over all rows."""
    return expected / cost if isnan(rate) else expected - rate * cost


cdef int begin(RowDraft* row, object confidence) except -1:
    row.sure = floats_of(confidence, &row.count, "each of confidences")
    row.taken = row.kept = 0
    row.reach = row.sure[0] if row.count else 0.0
    row.weight = 1.0
    return 0


cdef RowDraft* likeliest(RowDraft* rows, Py_ssize_t count) noexcept nogil:
    """The row whose next token has the highest value; NULL: all tokens are taken."""
    cdef RowDraft* found = NULL
    cdef Py_ssize_t row
    cdef double value, most = 0.0
    for row in range(count):
        if rows[row].taken < rows[row].count:
            value = rows[row].reach * rows[row].weight
            if found == NULL or value > most:
                found, most = &rows[row], value
    return found
