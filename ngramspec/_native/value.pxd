"""Drafting by value: at every position the candidate that is most likely the next token."""

from libc.stdint cimport int8_t, int32_t

from ngramspec._native.calibration cimport Calibration, Candidate
from ngramspec._native.copyindex cimport CopyIndex
from ngramspec._native.ngram cimport NGramTable

cdef enum:
    CANDIDATES = 4      # the copied token, two of the n-gram table, the resumed one

cdef struct Source:     # a place in the text that is being read along
    int32_t at          # position of the next token, or NONE
    int32_t length      # tokens that matched before

cdef struct Node:
    int count           # candidates
    int chosen
    int kind            # where the chosen one came from
    bint copying        # it is the copied token
    Candidate candidates[CANDIDATES]


cdef class ValueEngine:
    cdef readonly Calibration calibration
    cdef readonly CopyIndex copy
    cdef readonly NGramTable table
    cdef Node* nodes            # of the last proposal
    cdef Py_ssize_t node_cap
    cdef int node_n
    cdef Source match           # the longest match at the last proposal
    cdef Source resume          # where the last copy would go on
    cdef int since              # tokens since that copy was left
    cdef float mood             # decayed acceptance of this sequence

    cdef int fill(self, int gamma, const float* cost, int32_t* tokens, float* p) noexcept nogil
    cdef int candidates(self, Node* node, const int32_t* context, int n, int copied, int resumed,
                        int length, int since) noexcept nogil
    cdef int32_t text_at(self, Py_ssize_t at, const int32_t* drafted) noexcept nogil
    cdef void learn(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil
