"""Copies what followed the longest suffix of a text that occurred before."""

from ngramspec._native.automaton cimport Automaton


cdef class CopyIndex:
    cdef Automaton automaton
    cdef bint busy              # an operation is running without the GIL

    cdef int idle(self) except -1
