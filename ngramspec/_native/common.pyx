"""Array input for the native structures, and the salt of their hashes."""

import os

from libc.stdint cimport int32_t, uint64_t, uintptr_t

cimport numpy as cnp

cnp.import_array()

MOST_TOKENS = MAX_TOKENS  # of a text; windows and matches are not longer either
MOST_DRAFTED = MAX_DRAFT  # tokens per draft

cdef uint64_t _salt = int.from_bytes(os.urandom(8), "little")


def salt():
    """The salt of structures made from now on: 64 bits, drawn when the process imports this.

    Users who choose tokens do not know it, so they cannot choose tokens that collide in a hash
    table. A structure's results do not depend on it.
    """
    return _salt


def set_salt(uint64_t value):
    """Set the salt of structures made from now on, for tests."""
    global _salt
    _salt = value


cdef uint64_t process_salt() noexcept nogil:
    return _salt


cdef const int32_t[::1] token_view(object tokens, str name="tokens"):
    """View a contiguous one-dimensional int32 array, or raise a TypeError that describes the input.

    The caller must keep a reference to the view while reading it.
    """
    cdef const int32_t[::1] view = None
    try:
        if tokens is not None:  # None would be accepted as a view without memory
            view = tokens
    except (TypeError, ValueError, BufferError):
        pass
    if view is None:
        dtype = getattr(tokens, "dtype", type(tokens).__name__)
        shape = getattr(tokens, "shape", None)
        raise TypeError(
            f"{name} must be a contiguous one-dimensional int32 array, got {dtype}"
            + (f" of shape {tuple(shape)}" if shape is not None else "")
        )
    if <uintptr_t>start_of(view) % sizeof(int32_t):
        raise TypeError(f"{name} must be an aligned int32 array, got a misaligned one: pass a copy")
    return view


cdef object raise_negative(int32_t token, Py_ssize_t index):
    raise ValueError(f"token ids must be >= 0, got {token} at index {index}")


cdef int gamma_of(Py_ssize_t gamma) except -1:
    """Check a number of draft tokens: return it, or raise a ValueError that names the bound."""
    if gamma < 0:
        raise ValueError(f"gamma must be >= 0, got {gamma}")
    if gamma > MAX_DRAFT:
        raise ValueError(f"gamma must be <= {MAX_DRAFT}, got {gamma}")
    return <int>gamma


cdef const int32_t* array_tokens(object tokens, Py_ssize_t* n) noexcept:
    """Pointer and length of an aligned one-dimensional int32 NumPy array; NULL for anything else.

    A hundred times cheaper than a view. It holds no reference: only for reading under the GIL.
    """
    cdef cnp.ndarray array
    if isinstance(tokens, cnp.ndarray):
        array = <cnp.ndarray>tokens
        if (
            cnp.PyArray_TYPE(array) == cnp.NPY_INT32 and cnp.PyArray_NDIM(array) == 1
            and cnp.PyArray_ISCARRAY_RO(array)
        ):
            n[0] = cnp.PyArray_DIM(array, 0)
            return <const int32_t*>cnp.PyArray_DATA(array)
    return NULL


cdef const float* costs_of(object cost, Py_ssize_t needed) except NULL:
    """Pointer to at least ``needed`` float32 costs, or a TypeError or ValueError.

    It holds no reference: only for reading under the GIL.
    """
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
