"""Describing the candidates of a position: one input after the other, for all of them at once.

The candidates of a position have the same inputs, in the same order; the cells differ (cells.pxd).
"""

from libc.stdint cimport int8_t, int16_t, int32_t

from ngramspec._native.calibration cimport Candidate
from ngramspec._native.cells cimport (
    FAMILIAR_INPUT, MATCH_INPUT, NEAR_INPUT, NEAREST_INPUT, RESUME_INPUT, SESSION_INPUT,
    STORE_BLOCK, STORE_CELLS, STORE_INPUT, STORE_OTHER_CELLS, STORE_OTHER_INPUT,
    STORE_RESUME_CELLS, STORE_RESUME_INPUT, context_cell, familiar_cell, match_cell, near_cell,
    nearest_cell, resume_cell, runner_cell, session_cell, standing_of, store_cell,
    store_resume_cell,
)
from ngramspec._native.common cimport NONE
from ngramspec._native.contexts cimport Slot, count_of, leader
from ngramspec._native.keys cimport CONTEXTS, ORDERS
from ngramspec._native.places cimport MATCH, NEAR, RESUME, Place
from ngramspec._native.position cimport MOST_CANDIDATES, Position
from ngramspec._native.runners cimport FAINT, RANKS, Row, age_bucket, rank_of
from ngramspec._native.store_reader cimport StoreReader, Votes


cdef inline int add_input(Position* at, int input) noexcept nogil:
    """Give the candidates of a position one more input; its index among theirs."""
    at.inputs.of[at.inputs.n] = <int8_t>input
    at.inputs.n += 1
    return at.inputs.n - 1


cdef inline void add_agreeing(Position* at, int input, int cell, int32_t token) noexcept nogil:
    """Add an input that says whether a candidate is ``token``: then its cell is the next one."""
    cdef int i, u = add_input(at, input)
    for i in range(at.count):
        at.candidates[i].cell[u] = <int16_t>(cell + (at.candidates[i].token == token))


cdef inline void add_contexts(Position* at, const Slot** known, int* own) noexcept nogil:
    """Describe how often the candidates followed each context.

    Args:
        own: set to what the text says of each candidate: 0: nothing, 1: it followed one of the
            contexts, 2: it leads the longest one, 3: it is the match's.
    """
    cdef const Slot* longest = NULL
    cdef Candidate* c
    cdef bint newest
    cdef int32_t leads = NONE
    cdef int i, m, u, count
    for i in range(at.count):
        own[i] = 0
    for m in range(CONTEXTS):
        if known[m] == NULL:
            continue
        if m < ORDERS:
            longest = known[m]
        u = add_input(at, m)
        for i in range(at.count):
            c = &at.candidates[i]
            count = count_of(known[m], c.token, &newest)
            c.cell[u] = <int16_t>context_cell(m, count, known[m].total - count, newest)
            own[i] |= count != 0
    if longest != NULL:
        leads = longest.token[leader(longest)]
    for i in range(at.count):
        if at.candidates[i].token == at.placed[MATCH]:
            own[i] = 3
        elif at.candidates[i].token == leads:
            own[i] = 2


cdef inline void add_places(
    Position* at, const Place* places, int acceptance, int length
) noexcept nogil:
    """Describe whether the candidates come at a place; ``acceptance`` and ``length`` are buckets.
    """
    cdef const Place* resume = &places[RESUME]
    cdef const Place* near = &places[NEAR]
    cdef int i, u, cell
    if at.placed[MATCH] != NONE:
        cell = match_cell(length, acceptance, False)
        add_agreeing(at, MATCH_INPUT, cell, at.placed[MATCH])
    if at.placed[RESUME] != NONE:
        cell = resume_cell(resume.since + at.depth, resume.length, False)
        add_agreeing(at, RESUME_INPUT, cell, at.placed[RESUME])
    if at.placed[NEAR] != NONE:
        cell = near_cell(resume.since, near.length + at.depth, near.since, False)
        add_agreeing(at, NEAR_INPUT, cell, at.placed[NEAR])
    cell = session_cell(acceptance, length)
    u = add_input(at, SESSION_INPUT)
    for i in range(at.count):
        at.candidates[i].cell[u] = <int16_t>cell


cdef inline void add_store(Position* at, StoreReader store, const int* own) noexcept nogil:
    """Describe what a store says of the candidates; ``own`` is what the text says."""
    cdef const Votes* votes = &at.votes
    cdef Candidate* c
    cdef int which[MOST_CANDIDATES]
    cdef int i, k, says, cell
    for i in range(at.count):
        k = 0
        while k < votes.n and votes.token[k] != at.candidates[i].token:
            k += 1
        which[i] = k
    if votes.total:
        cell = STORE_CELLS + STORE_BLOCK * store.earlier
        add_counts(at, STORE_INPUT, cell, votes.count, votes.total, which)
    if votes.others:
        cell = STORE_OTHER_CELLS + STORE_BLOCK * store.earlier
        add_counts(at, STORE_OTHER_INPUT, cell, votes.other, votes.others, which)
    if votes.resumed != NONE:
        cell = store_resume_cell(
            STORE_RESUME_CELLS + STORE_BLOCK * store.resume_earlier, store.since + at.depth,
            store.resume.length, False,
        )
        add_agreeing(at, STORE_RESUME_INPUT, cell, votes.resumed)
    if votes.n == 0:
        return
    add_where(at, store.earlier, which)
    for i in range(at.count):
        c = &at.candidates[i]
        says = (
            (which[i] < votes.n) + (which[i] == votes.leading_other)
            + 2 * (which[i] == votes.leading)
        )
        c.standing = <int16_t>standing_of(store.earlier, own[i], says, votes.length)


cdef inline void add_counts(
    Position* at, int input, int first, const int32_t* counts, int total, const int* which
) noexcept nogil:
    """Describe how many of a store's places say each candidate."""
    cdef int i, u = add_input(at, input)
    for i in range(at.count):
        at.candidates[i].cell[u] = <int16_t>store_cell(
            first, at.votes.length, counts[which[i]], total - counts[which[i]]
        )


cdef inline void add_where(Position* at, bint earlier, const int* which) noexcept nogil:
    """Describe where in the store the candidates come next."""
    cdef const Votes* votes = &at.votes
    cdef float copied
    cdef int32_t distance
    cdef int i, u, rank
    if votes.familiar != NONE:
        u = add_input(at, FAMILIAR_INPUT)
        copied = votes.copied[votes.familiar]
        for i in range(at.count):
            rank = (votes.copied[which[i]] > 0) + (votes.copied[which[i]] == copied)
            at.candidates[i].cell[u] = <int16_t>familiar_cell(earlier, rank, copied, votes.length)
    u = add_input(at, NEAREST_INPUT)
    distance = votes.distance[votes.nearest]
    for i in range(at.count):
        rank = (which[i] < votes.n) + (votes.distance[which[i]] == distance)
        at.candidates[i].cell[u] = <int16_t>nearest_cell(earlier, rank, distance, votes.length)


cdef inline void add_row(
    Position* at, int input, int first, const Row* row, Py_ssize_t n
) noexcept nogil:
    """Describe what the target said of the candidates when it last saw the tokens before.

    Args:
        input, first: the input, and the first of its cells.
        row: the target's runners-up.
        n: tokens of the text.
    """
    cdef int age = age_bucket(n - row.since)
    cdef int leading = row.probability[0] if row.n else <int>FAINT
    cdef int i, rank, u = add_input(at, input)
    for i in range(at.count):
        rank = rank_of(row, at.candidates[i].token)
        at.candidates[i].cell[u] = <int16_t>runner_cell(
            first, rank, leading if rank == RANKS else row.probability[rank], age
        )
