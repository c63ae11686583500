"""A position of a draft: what is known there, and its candidates."""

from libc.stdint cimport int32_t, uint64_t

from ngramspec._native.calibration cimport Candidates
from ngramspec._native.keys cimport ORDERS, Keys
from ngramspec._native.places cimport PLACES
from ngramspec._native.store_reader cimport Votes

cdef enum:
    FROM_COPY = 0           # sources of a drafted token
    FROM_RESUME = 1
    FROM_NGRAM = 2
    FROM_UNIGRAM = 3
    FROM_STORE = 4
    FROM_TOP = 5
    FROM_HEAD = 6

cdef struct Position:       # after the committed text and a path of draft tokens
    int32_t context[ORDERS + 1]     # the last tokens, and room for a guess of the next
    int32_t have            # number of last tokens
    int32_t depth           # tokens in the path
    float reach             # P(the path)
    bint follows[PLACES]    # whether the path is the text at a place; a resumed copy: always true
    int32_t length          # the match's length, while the path follows it
    int32_t placed[PLACES]  # the token at each place, or NONE
    Keys copied             # keys of the contexts after the match's token
    uint64_t live           # bits of the store's places that the path follows
    Votes votes             # the next tokens at these places
    bint headed             # whether the path is a drafting head's
    int32_t leads           # the first token of the head's row, or NONE
    bint fallback           # whether the only candidate is the most frequent token
    int32_t recycled        # candidates from this index on are only top-k candidates
    int32_t ranked          # from this index on they are only a drafting head's
    int32_t best            # index of the most probable candidate
    Candidates candidates


cdef inline bint is_candidate(const Position* at, int32_t token) noexcept nogil:
    cdef int i
    for i in range(at.candidates.n):
        if at.candidates.token[i] == token:
            return True
    return False


cdef inline int source_of(const Position* at, int32_t token, int otherwise) noexcept nogil:
    """The source of a token, see ``ValueEngine.draft``; ``otherwise`` if no other applies."""
    cdef int i
    if token == at.placed[0]:
        return FROM_COPY
    if token == at.leads:
        return FROM_HEAD
    for i in range(1, PLACES):
        if token == at.placed[i]:
            return FROM_RESUME
    for i in range(at.votes.n):
        if token == at.votes.token[i]:
            return FROM_STORE
    if token == at.votes.resumed:
        return FROM_STORE
    for i in range(at.recycled, at.candidates.n):
        if token == at.candidates.token[i]:
            return FROM_TOP if i < at.ranked else FROM_HEAD
    return otherwise
