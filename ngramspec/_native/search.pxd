"""Best-first search for the draft with the most expected tokens per cost."""

from libc.stdint cimport int32_t

from ngramspec._native.candidates cimport Estimator
from ngramspec._native.committed cimport CommittedText
from ngramspec._native.contexts cimport Slot
from ngramspec._native.frontier cimport Frontier
from ngramspec._native.position cimport Position


cdef class DraftSearch:
    cdef CommittedText committed
    cdef Estimator estimator
    cdef Frontier frontier      # of the last draft
    cdef float least            # reach up to which a tree's nodes are not expanded
    cdef float least_node       # reach below which a tree ends
    cdef float least_rest       # remaining probability above which recent tokens are offered
    cdef int lookahead          # maximum number of a tree's nodes inspected after the best end
    cdef bint tree              # whether the last draft is a tree
    cdef Position* positions    # estimated for it, and not yet learned from
    cdef Py_ssize_t position_cap
    cdef int position_n

    cdef int prepare(self, int limit, bint tree) noexcept nogil
    cdef void set_bounds(self) noexcept nogil
    cdef int run(self, const float* cost) noexcept nogil
    cdef void begin(self) noexcept nogil
    cdef bint follows_match(self, int k) noexcept nogil
    cdef void expand(self, int k) noexcept nogil
    cdef bint reads(self, int depth, int32_t token) noexcept nogil
    cdef void branch(self, Position* at, int parent, const Slot** known) noexcept nogil
    cdef void offer_recent(self, const Position* at, int parent, float rest) noexcept nogil
    cdef void offer_unemitted(self, const Position* at, int parent, float rest) noexcept nogil
    cdef void offer(
        self, const Position* at, int parent, int32_t token, float p, int otherwise
    ) noexcept nogil
    cdef void learn(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
