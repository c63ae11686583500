"""Array input shared by the native structures."""

from libc.stdint cimport int32_t

cimport numpy as cnp

cnp.import_array()


cdef const int32_t[::1] token_view(object tokens, str name="tokens"):
    """View a contiguous one-dimensional int32 array, or raise a TypeError that says what came."""
    try:
        if tokens is not None:  # None would pass as a view of no memory
            return tokens
    except (TypeError, ValueError, BufferError):
        pass
    dtype = getattr(tokens, "dtype", type(tokens).__name__)
    shape = getattr(tokens, "shape", None)
    raise TypeError(
        f"{name} must be a contiguous one-dimensional int32 array, got {dtype}"
        + (f" of shape {tuple(shape)}" if shape is not None else "")
    )


cdef object raise_negative(const int32_t[::1] tokens, Py_ssize_t index):
    raise ValueError(f"token ids must be >= 0, got {tokens[index]} at index {index}")


cdef const int32_t* tokens_of(object tokens, Py_ssize_t* n, str name="tokens") except? NULL:
    """Pointer and length of a contiguous one-dimensional int32 array; else as token_view.

    A hundred times cheaper than a view. The pointer is valid as long as ``tokens``.
    """
    cdef cnp.ndarray array
    cdef const int32_t[::1] view
    if isinstance(tokens, cnp.ndarray):
        array = <cnp.ndarray>tokens
        if (
            cnp.PyArray_TYPE(array) == cnp.NPY_INT32 and cnp.PyArray_NDIM(array) == 1
            and cnp.PyArray_ISCARRAY_RO(array)
        ):
            n[0] = cnp.PyArray_DIM(array, 0)
            return <const int32_t*>cnp.PyArray_DATA(array)
    view = token_view(tokens, name)
    n[0] = view.shape[0]
    return &view[0] if n[0] else NULL


cdef const float* costs_of(object cost, Py_ssize_t needed) except NULL:
    """Pointer to at least ``needed`` float32 costs, or a TypeError or ValueError."""
    cdef cnp.ndarray array
    if isinstance(cost, cnp.ndarray):
        array = <cnp.ndarray>cost
        if (
            cnp.PyArray_TYPE(array) == cnp.NPY_FLOAT32 and cnp.PyArray_NDIM(array) == 1
            and cnp.PyArray_ISCARRAY_RO(array)
        ):
            if cnp.PyArray_DIM(array, 0) < needed:
                raise ValueError(f"cost must have {needed} entries, got {len(cost)}")
            return <const float*>cnp.PyArray_DATA(array)
    what = getattr(cost, "dtype", type(cost).__name__)
    raise TypeError(f"cost must be a contiguous one-dimensional float32 array, got {what}")
