"""The tokens that may come next at a position of a draft, each with its probability."""

from libc.stdint cimport int32_t

from ngramspec._native.calibration cimport Calibration
from ngramspec._native.committed cimport CommittedText
from ngramspec._native.contexts cimport Slot
from ngramspec._native.head cimport HeadRow, HeadRows
from ngramspec._native.position cimport Position
from ngramspec._native.top_tokens cimport UNEMITTED, Row, TopTokens, Unemitted
from ngramspec._native.store_reader cimport StoreReader, Votes


cdef class Estimator:
    cdef Calibration calibration
    cdef CommittedText committed
    cdef StoreReader store  # or None
    cdef TopTokens top_tokens  # or None
    cdef HeadRows head      # or None
    cdef bint counts, falls_back
    cdef Unemitted unemitted[UNEMITTED]  # top-k tokens that were not emitted before the last tree
    cdef int unemitted_n
    cdef float acceptance   # decayed share of best candidates that were right in this sequence

    cdef void estimate(self, Position* at, const Slot** known, float least) noexcept nogil
    cdef int collect(
        self, Position* at, const Slot** known, const Row** rows, const HeadRow* head, float least
    ) noexcept nogil
    cdef void describe(
        self, Position* at, const Slot** known, const Row** rows, const HeadRow* head
    ) noexcept nogil
    cdef int collect_store(
        self, const Votes* votes, float least, int32_t* tokens, int count
    ) noexcept nogil
    cdef void count_unemitted(self) noexcept nogil
    cdef inline bint is_unemitted(self, const Position* at, int32_t token) noexcept nogil:
        """Whether a token is offered at a position as an unemitted top-k token."""
        cdef int i
        if at.depth == 0:
            for i in range(self.unemitted_n):
                if self.unemitted[i].token == token:
                    return True
        return False

    cdef void learn(self, const Position* at, int32_t token, bint tree) noexcept nogil
    cdef void learn_unemitted(self, const Position* at, int32_t token) noexcept nogil
