"""Array input for the native structures, and the salt of their hashes."""

from libc.stdint cimport int32_t, uint64_t

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


cdef int check_ids(const int32_t* tokens, Py_ssize_t n) except -1:
    """Raise a ValueError if one of the tokens is negative."""
    cdef Py_ssize_t i
    for i in range(n):
        if tokens[i] < 0:
            raise ValueError(f"token ids must be >= 0, got {tokens[i]} at index {i}")
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

    A hundred times cheaper than a view. Only for reading while the caller has a reference to the
    array, which NumPy then refuses to resize.
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


cdef void* checked_data(object array, int dtype, Py_ssize_t* n, str name, str wanted) except NULL:
    """What ``array_data`` finds, or a TypeError that describes the array."""
    cdef void* data = array_data(array, dtype, n)
    if data == NULL:
        what = getattr(array, "dtype", type(array).__name__)
        shape = f" of shape {array.shape}" if isinstance(array, cnp.ndarray) else ""
        raise TypeError(
            f"{name} must be an aligned contiguous one-dimensional {wanted} array,"
            f" got {what}{shape}"
        )
    return data


cdef const int32_t* tokens_of(object tokens, Py_ssize_t* n, str name="tokens") except NULL:
    return <const int32_t*>checked_data(tokens, cnp.NPY_INT32, n, name, "int32")


cdef const float* floats_of(object floats, Py_ssize_t* n, str name) except NULL:
    return <const float*>checked_data(floats, cnp.NPY_FLOAT32, n, name, "float32")


cdef class TokenStructure:
    """Takes the tokens of one text. One thread at a time: a second one gets a RuntimeError."""

    def extend(self, tokens):
        """Take committed tokens (int32 array, ids >= 0), in order.

        After a TypeError or ValueError nothing was taken; after a MemoryError the tokens before the
        failure were, and the structure stays valid.
        """
        cdef Py_ssize_t i, count = 0
        cdef const int32_t* new = tokens_of(tokens, &count)
        cdef int failed = 0
        if count >= MAX_TOKENS - self.n:
            raise OverflowError(f"this {self.name} takes at most {MAX_TOKENS - 1} tokens")
        check_ids(new, count)
        self.enter()
        with nogil:
            for i in range(count):
                failed = self.append(new[i])
                if failed:
                    break
                self.n += 1
        self.busy = False
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
