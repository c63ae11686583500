"""Adding one request's text to a ring, and drafting from the text of others.

Tokens are added BATCH at a time, after the request's last ones. If other requests' text intervened,
the last OVERLAP tokens are first written again, so that they find the text that follows. A request
does not find its own text while that lies in the last OWN_RANGES pieces, because the sequence
itself finds it better. Memory: 1 kB. One thread at a time; a ring supports any number of streams.
"""

from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy, memmove

import numpy as np

from ngramspec._native.common cimport MAX_TOKENS, array_tokens, check_ids, start_of, token_view
from ngramspec._native.store_ring cimport BATCH, OWN_RANGES, Own, StoreRing
from ngramspec._native.store_source cimport Found, StoreSource
from ngramspec._native.store_tally cimport SEPARATOR

cdef enum:
    OVERLAP = 16    # tokens that are repeated after other requests' text intervened

ADDED_AT_ONCE = BATCH
WRITTEN_AGAIN = OVERLAP


cdef class StoreStream(StoreSource):
    """One request's access to a namespace.

    Args:
        ring: the namespace's ring.
        limit: exclusive upper bound of the token ids that are read; 0: no bound.
    """

    cdef StoreRing ring
    cdef uint64_t owner
    cdef int32_t limit              # exclusive upper bound of the token ids that are read
    cdef int32_t before[OVERLAP]    # the last tokens that were added
    cdef int have                   # number of tokens in ``before``
    cdef int32_t pending[BATCH]     # tokens that are not added yet
    cdef int pending_n
    cdef Own own
    cdef bint busy                  # tokens are added without the GIL

    def __cinit__(self, StoreRing ring not None, int64_t limit=0):
        if not 0 <= limit < SEPARATOR:
            raise ValueError(f"limit must be in 0..{SEPARATOR - 1}, got {limit}")
        self.ring = ring
        self.limit = <int32_t>limit if limit else SEPARATOR
        self.owner = ring.new_owner()
        self.own.last = -1

    def append(self, tokens):
        """Add tokens, int32 (n,), in batches of BATCH.

        Raises:
            TypeError: not such an array.
            ValueError: an id is below 0 or is 2147483647; nothing was added.
        """
        cdef const int32_t[::1] view  # holds the array while the GIL is released
        cdef Py_ssize_t i, n = 0
        cdef const int32_t* new = array_tokens(tokens, &n)
        cdef bint few = new != NULL and n < BATCH
        if not few:
            view = token_view(tokens)
            new, n = start_of(view), view.shape[0]
        check_ids(new, n)
        for i in range(n):
            if new[i] == SEPARATOR:
                raise ValueError(f"token ids must be < {SEPARATOR}, got one at index {i}")
        self.idle()
        if few:
            self.put(new, n)
            return
        self.busy = True
        with nogil:
            self.put(new, n)
        self.busy = False

    def append_documents(self, codes):
        """Add documents, int32 (n,): token ids, with BORDER before each document.

        The last document continues with what is appended next. Empty documents add nothing.

        Raises:
            TypeError: not such an array.
            ValueError: an id below 0; nothing was added.
        """
        cdef const int32_t[::1] view = token_view(codes, "codes")
        cdef const int32_t* new = start_of(view)
        cdef Py_ssize_t i, begin = 0, n = view.shape[0]
        check_ids(new, n)
        self.idle()
        self.busy = True
        with nogil:
            for i in range(n):
                if new[i] == SEPARATOR:
                    self.put(new + begin, i - begin)
                    self.flush()
                    self.end_document()
                    begin = i + 1
            self.put(new + begin, n - begin)
        self.busy = False

    def follow(self, StoreStream earlier not None):
        """Continue the text of an earlier stream of the same ring, before anything is added.

        Its text is not found either, and the first tokens added follow its last ones.
        """
        if earlier.ring is not self.ring:
            raise ValueError("the earlier stream is of another ring")
        self.own = earlier.own
        self.before = earlier.before
        self.have = earlier.have

    def publish(self):
        """Add the pending tokens; the document may continue."""
        self.idle()
        self.flush()

    def finish(self):
        """Add the pending tokens and end the document."""
        self.close()
        self.have = 0

    def close(self):
        """Add the pending tokens and end the document, which a later stream may ``follow``."""
        self.idle()
        self.flush()
        self.ring.end(self.owner)

    def end(self):
        """End the document without adding the pending tokens."""
        self.end_document()

    def find(self, context, int most=32):
        """Places after a context: [(position, matched tokens), ...], the longest first.

        Args:
            context: int32 (n,).
            most: maximum number of places, 1..32.
        """
        cdef const int32_t[::1] view = token_view(context, "context")
        cdef Found found[32]
        cdef int i, n
        if not 1 <= most <= 32:
            raise ValueError(f"most must be in 1..32, got {most}")
        if view.shape[0] == 0:
            return []
        with nogil:
            n = self.look(&view[0] + view.shape[0], view.shape[0], found, most)
        return [(found[i].at, found[i].length) for i in range(n)]

    def tokens_at(self, int64_t at, int most):
        """At most ``most`` tokens from a position: int32 (n,)."""
        if not 0 <= most <= MAX_TOKENS:
            raise ValueError(f"most must be in 0..{MAX_TOKENS}, got {most}")
        most = min(most, <int>BATCH)
        cdef int32_t[::1] into
        cdef int n
        tokens = np.empty(most, np.int32)
        into = tokens
        if most == 0:
            return tokens
        with nogil:
            n = self.read(at, &into[0], most)
        return tokens[:n]

    def sizeof(self):
        """Bytes allocated, without the ring."""
        return sizeof(StoreStream)

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        assert 0 <= self.pending_n <= BATCH and 0 <= self.have <= OVERLAP
        assert 0 <= self.own.n <= OWN_RANGES and self.own.last < OWN_RANGES

    cdef int idle(self) except -1:
        if self.busy:
            raise RuntimeError("this stream is being used by another thread")
        return 0

    cdef void put(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        cdef int m
        while n:
            m = <int>min(<Py_ssize_t>(BATCH - self.pending_n), n)
            memcpy(self.pending + self.pending_n, tokens, m * sizeof(int32_t))
            self.pending_n += m
            tokens += m
            n -= m
            if self.pending_n == BATCH:
                self.flush()

    cdef void flush(self) noexcept nogil:
        """Add the pending tokens."""
        cdef int kept, n = self.pending_n
        if n == 0:
            return
        self.ring.add(self.owner, self.before, self.have, self.pending, n, &self.own)
        kept = max(0, min(self.have, <int>OVERLAP - n))
        memmove(self.before, self.before + self.have - kept, kept * sizeof(int32_t))
        self.have = min(kept + n, <int>OVERLAP)
        memcpy(
            self.before + kept, self.pending + n - (self.have - kept),
            (self.have - kept) * sizeof(int32_t)
        )
        self.pending_n = 0

    cdef void end_document(self) noexcept nogil:
        """End the document and drop the pending tokens."""
        self.pending_n = self.have = 0
        self.ring.end(self.owner)

    cdef int look(
        self, const int32_t* end, Py_ssize_t have, Found* into, int most
    ) noexcept nogil:
        return self.ring.look(end, have, &self.own, into, most)

    cdef int read(self, int64_t at, int32_t* into, int most) noexcept nogil:
        return self.ring.read(at, into, most, self.limit)

    cdef void credit(self, int64_t at, int n) noexcept nogil:
        self.ring.credit(n)

    cdef bint earlier(self, int64_t at) noexcept nogil:
        return True
