"""Array input for the native structures, and the salt of their hashes."""

from libc.stdint cimport int32_t, uint64_t, uintptr_t

import os

cimport numpy as cnp

cnp.import_array()

MOST_TOKENS = MAX_TOKENS  # of a text; windows and matches are not longer either
cdef uint64_t _salt = int.from_bytes(os.urandom(8), "little")


def salt():
    """The salt of structures made from now on: 64 bits, drawn when the process imports this."""
    return _salt


def set_salt(uint64_t value):
    """Set the salt of structures made from now on, for tests."""
    global _salt
    _salt = value


cdef uint64_t process_salt() noexcept nogil:
    return _salt


cdef const int32_t[::1] token_view(object tokens, str name="tokens"):
    """View a contiguous one-dimensional int32 array, or raise a TypeError that describes it."""
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


cdef int check_ids(const int32_t* tokens, Py_ssize_t n, Py_ssize_t begin=0) except -1:
    """Raise a ValueError if one of the tokens begin..n - 1 is negative."""
    cdef Py_ssize_t i
    for i in range(begin, n):
        if tokens[i] < 0:
            raise_negative(tokens[i], i)
    return 0


cdef int gamma_of(Py_ssize_t gamma) except -1:
    """Check a number of draft tokens: return it, or raise a ValueError that names the bound."""
    if gamma < 0:
        raise ValueError(f"gamma must be >= 0, got {gamma}")
    if gamma > MAX_DRAFT:
        raise ValueError(f"gamma must be <= {MAX_DRAFT}, got {gamma}")
    return <int>gamma


cdef void* array_data(object array, int dtype, Py_ssize_t* n) noexcept:
    """Data and length of an aligned one-dimensional NumPy array; NULL for anything else.

    A hundred times cheaper than a view. It holds no reference: only for reading under the GIL.
    """
    cdef cnp.ndarray found
    if isinstance(array, cnp.ndarray):
        found = <cnp.ndarray>array
        if (
            cnp.PyArray_TYPE(found) == dtype and cnp.PyArray_NDIM(found) == 1
            and cnp.PyArray_ISCARRAY_RO(found)
        ):
            n[0] = cnp.PyArray_DIM(found, 0)
            return cnp.PyArray_DATA(found)
    return NULL


cdef const int32_t* array_tokens(object tokens, Py_ssize_t* n) noexcept:
    return <const int32_t*>array_data(tokens, cnp.NPY_INT32, n)


cdef const float* array_floats(object floats, Py_ssize_t* n) noexcept:
    return <const float*>array_data(floats, cnp.NPY_FLOAT32, n)


cdef class TokenStructure:
    """Takes the tokens of one text. One thread at a time: a second one gets a RuntimeError."""

    def extend(self, tokens):
        """Take committed tokens (int32 array, ids >= 0), in order.

        After a TypeError or ValueError nothing was taken; after a MemoryError the tokens before the
        failure were, and the structure stays valid.
        """
        cdef const int32_t[::1] view = token_view(tokens)
        cdef Py_ssize_t i, bad, count = view.shape[0]
        cdef int failed = 0
        if count == 0:
            return
        if count >= MAX_TOKENS - self.n:
            raise OverflowError(f"this {self.name} takes at most {MAX_TOKENS - 1} tokens")
        self.enter()
        with nogil:
            bad = first_negative(&view[0], count)
            if bad == NONE:
                for i in range(count):
                    failed = self.append(view[i])
                    if failed:
                        break
                    self.n += 1
        self.busy = False
        if bad != NONE:
            raise_negative(view[bad], bad)
        if failed:
            raise MemoryError(f"{self.name} at {self.n} tokens")

    cdef int append(self, int32_t token) noexcept nogil:
        """Take one token: 0, or -1 without memory and with nothing changed."""
        return -1


cdef class NoSection:
    """The section of a call without an observer: a context without effect, by any name."""

    def __call__(self, name):
        return self

    def __enter__(self):
        return None

    def __exit__(self, kind, error, traceback):
        return None
