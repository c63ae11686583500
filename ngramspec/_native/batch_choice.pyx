"""The cost of a batch's drafts and the number of tokens worth verifying; see ``costs.policies``.

Theorem 3.8 of Leviathan et al. (2023) with a probability for each token, for a batch in which the
cost of a step depends on the total number of its positions.
"""

from libc.math cimport NAN, isnan
from libc.stdlib cimport free, malloc

cimport numpy as cnp

from ngramspec._native.common cimport array_floats

cnp.import_array()


def worthwhile_heads(
    confidences, const float[::1] curve not None, bint chains=True, double lasting=1.0,
    weights=None, double rate=NAN,
):
    """The lengths of a batch's drafts that maximize the value of its expected tokens.

    The most likely tokens of all rows are taken first; on ties, those of the earlier row. If
    several lengths have the same value, the longest drafts are taken.

    Args:
        confidences: for each row a contiguous float32 array (n,). With ``chains``: P(accepted |
            those before are) of its tokens; otherwise P(accepted) of its nodes, in descending
            order.
        curve: float32 (m,), m >= 1: curve[d] is the cost of a step with d draft tokens in total. No
            more than m - 1 are drafted.
        chains: the meaning of the confidences.
        lasting: for chains, P(a token is still needed | the one before it is).
        weights: floats, the value of a token of each row; None: 1.
        rate: a row's tokens per cost over all steps. The value is the expected tokens minus what
            the cost of the step yields at this rate. NaN: the value is this step's tokens per cost.

    Returns:
        list of the rows' draft lengths.

    Raises:
        TypeError, ValueError: invalid arrays, an empty curve, or another number of weights.
        MemoryError: out of memory.

    Example:
        >>> import numpy as np
        >>> sure, rare = np.array([0.9, 0.9], np.float32), np.array([0.1], np.float32)
        >>> worthwhile_heads([sure, rare], np.array([1, 1.2, 1.4, 1.6], np.float32))
        [2, 0]
    """
    cdef Py_ssize_t rows = len(confidences), row, total
    cdef Py_ssize_t most = curve.shape[0] - 1
    cdef double expected = rows, value, highest
    cdef Row* all_rows
    cdef Row* next_row
    if most < 0:
        raise ValueError("curve must have one entry or more, got 0")
    if rows == 0:
        return []
    if weights is not None and len(weights) != rows:
        raise ValueError(f"weights must be as many as rows, {rows}, got {len(weights)}")
    held = tuple(confidences)  # keeps the arrays alive
    all_rows = <Row*>malloc(rows * sizeof(Row))
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
    """Whether drafts that are certainly accepted would be worth their cost.

    Args:
        curve: float32 (n,), n >= 1: curve[d] is the cost of a step with d draft tokens in total.
        rows: number of rows of the batch.
        k: maximum number of draft tokens per row.
        rate: a row's tokens per cost over all steps.
    """
    cdef Py_ssize_t drafted
    for drafted in range(1, min(curve.shape[0], rows * k + 1)):
        if drafted > rate * rows * (<double>curve[drafted] - 1.0):
            return True
    return False


def generous_cost(const float[::1] curve not None, Py_ssize_t rows, Py_ssize_t k):
    """A row's cost, float32 (k + 2,), with which sessions omit what pays off in no batch.

    It is a quarter of the lowest cost that a token adds. Which of the remaining tokens are worth
    verifying depends on the other rows and is decided jointly.

    Args:
        curve, rows, k: as in ``may_pay``.

    Raises:
        ValueError: an empty curve, or k < 0.
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
    """The value of a step, see ``worthwhile_heads``. ``rate`` is the sum over all rows."""
    return expected / cost if isnan(rate) else expected - rate * cost


cdef struct Row:
    const float* sure
    Py_ssize_t count
    Py_ssize_t taken
    Py_ssize_t kept
    double reach  # P(its next token is accepted)
    double weight


cdef int begin(Row* row, object confidence) except -1:
    row.sure = array_floats(confidence, &row.count)
    if row.sure == NULL:
        if not isinstance(confidence, cnp.ndarray):
            raise TypeError(f"confidences must be float32 arrays, got {type(confidence).__name__}")
        raise TypeError(
            "confidences must be contiguous float32 arrays of one dimension,"
            f" got {confidence.dtype} {confidence.shape}"
        )
    row.taken = row.kept = 0
    row.reach = row.sure[0] if row.count else 0.0
    row.weight = 1.0
    return 0


cdef Row* likeliest(Row* rows, Py_ssize_t count) noexcept nogil:
    """The row whose next token has the highest value; NULL: all tokens are taken."""
    cdef Row* found = NULL
    cdef Py_ssize_t row
    cdef double value, most = 0.0
    for row in range(count):
        if rows[row].taken < rows[row].count:
            value = rows[row].reach * rows[row].weight
            if found == NULL or value > most:
                found, most = &rows[row], value
    return found
