"""One request's access to a namespace: what it adds, and what it finds of other requests."""

from libc.stdint cimport int32_t, int64_t, uint64_t

from ngramspec._native.store_ring cimport BATCH, Own, StoreRing
from ngramspec._native.store_source cimport Found, StoreSource

cdef enum:
    OVERLAP = 16    # tokens that are repeated after other requests' text intervened


cdef class StoreStream(StoreSource):
    cdef StoreRing ring
    cdef uint64_t owner
    cdef int32_t limit              # exclusive upper bound of the token ids that are read
    cdef int32_t before[OVERLAP]    # the last tokens that were added
    cdef int have                   # number of tokens in ``before``
    cdef int32_t pending[BATCH]     # tokens that are not added yet
    cdef int pending_n
    cdef Own own
    cdef bint busy                  # tokens are added without the GIL

    cdef void put(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
    cdef void flush(self) noexcept nogil
    cdef void end_document(self) noexcept nogil
