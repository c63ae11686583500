"""Drafting by value: at every position the candidate that is most likely to be the next token."""

cimport numpy as cnp
from libc.stdint cimport int32_t

from ngramspec._native.calibration cimport Calibration
from ngramspec._native.candidates cimport Estimator
from ngramspec._native.committed cimport CommittedText
from ngramspec._native.head cimport HeadRows
from ngramspec._native.top_tokens cimport TopTokens
from ngramspec._native.search cimport DraftSearch
from ngramspec._native.store_reader cimport StoreReader


cdef class ValueEngine:
    cdef readonly Calibration calibration
    cdef readonly bint copies, counts, falls_back
    cdef readonly int min_match
    cdef CommittedText committed
    cdef Estimator estimator
    cdef DraftSearch search
    cdef StoreReader store      # or None
    cdef readonly TopTokens top_tokens     # or None
    cdef readonly HeadRows head         # or None
    cdef bint busy              # an operation is running without the GIL

    cdef int idle(self) except -1
    cdef cnp.npy_intp propose(self, Py_ssize_t gamma, object cost, bint tree) except -1
    cdef object drafted(self, cnp.npy_intp n)
