"""The interface of stores to the value engine."""


cdef class StoreSource:
    """Text that outlives a request."""

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil:
        """Find places behind a context, the longest agreement first.

        Args:
            end: behind the context's last token.
            have: tokens before it.
            into: room for ``most`` places.

        Returns:
            How many there are.
        """
        return 0

    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil:
        """Copy at most ``most`` tokens from a position on; fewer at a document's end."""
        return 0
