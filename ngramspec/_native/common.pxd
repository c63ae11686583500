"""Shared by the structures: token input, the salt, and array growth that keeps the old data."""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport realloc

cdef enum:
    NONE = -1            # no index: end of a list, no state, no bucket
    MAX_TOKENS = 1 << 30  # positions and ids share int32 with flags
    MAX_DRAFT = 1 << 16  # tokens per draft


cdef uint64_t process_salt() noexcept nogil
cdef const int32_t[::1] token_view(object tokens, str name=*)
cdef const int32_t* array_tokens(object tokens, Py_ssize_t* n) noexcept
cdef const float* array_floats(object floats, Py_ssize_t* n) noexcept
cdef object raise_negative(int32_t token, Py_ssize_t index)
cdef int check_ids(const int32_t* tokens, Py_ssize_t n, Py_ssize_t begin=*) except -1
cdef int gamma_of(Py_ssize_t gamma) except -1


cdef class TokenStructure:
    cdef Py_ssize_t n           # tokens taken so far
    cdef bint busy              # an operation is running without the GIL
    cdef str name               # in errors

    cdef int append(self, int32_t token) noexcept nogil
    cdef inline int idle(self) except -1:
        """Raise a RuntimeError while an operation runs in another thread."""
        if self.busy:
            raise RuntimeError(f"this {self.name} is being used by another thread")
        return 0

    cdef inline int enter(self) except -1:
        """Begin an operation without the GIL; it ends with ``busy`` = False."""
        self.idle()
        self.busy = True
        return 0


cdef inline const int32_t* start_of(const int32_t[::1] view) noexcept nogil:
    """Pointer to a view's first token, valid while the view lives; NULL for an empty view."""
    return &view[0] if view.shape[0] else NULL


cdef inline Py_ssize_t first_negative(const int32_t* tokens, Py_ssize_t n) noexcept nogil:
    """Index of the first negative id, or NONE."""
    cdef Py_ssize_t i
    for i in range(n):
        if tokens[i] < 0:
            return i
    return NONE


cdef inline int reserve(
    void** array, Py_ssize_t* capacity, Py_ssize_t needed, size_t width
) noexcept nogil:
    """Make room for ``needed`` elements of ``width`` bytes: 0, or -1 with the array unchanged."""
    cdef Py_ssize_t grown
    cdef void* moved
    if needed <= capacity[0]:
        return 0
    grown = capacity[0] + (capacity[0] >> 1) + 16
    if grown < needed:
        grown = needed
    moved = realloc(array[0], <size_t>grown * width)
    if moved == NULL:
        return -1
    array[0] = moved
    capacity[0] = grown
    return 0
