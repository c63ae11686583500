"""Describing the candidates of a position, one input at a time for all of them at once.

The candidates of a position have the same inputs, in the same order; the cells differ (cells.pxd).
"""

from libc.stdint cimport int8_t, int16_t, int32_t

from ngramspec._native.calibration cimport ROOM, Candidates
from ngramspec._native.cells cimport (
    AGREEMENTS, FAMILIAR_INPUT, HEAD_DEPTH_INPUT, HEAD_INPUT, MATCH_INPUT, NEAR_INPUT,
    NEAREST_INPUT, RESUME_INPUT, SESSION_INPUT, STORE_BLOCK, STORE_CELLS, STORE_INPUT,
    STORE_OTHER_CELLS, STORE_OTHER_INPUT, STORE_RESUME_CELLS, STORE_RESUME_INPUT, context_cell,
    familiar_cell, head_cell, head_depth_cell, match_cell, near_cell, nearest_cell, resume_cell,
    top_cell, session_cell, standing_of, store_cell, store_resume_cell,
)
from ngramspec._native.common cimport NONE
from ngramspec._native.contexts cimport LEADERS, Slot, leader
from ngramspec._native.head cimport FAINT_CHANCE, HeadRow
from ngramspec._native.keys cimport CONTEXTS, ORDERS
from ngramspec._native.lanes cimport set_cells, set_cells_of_three, set_where
from ngramspec._native.places cimport MATCH, NEAR, RESUME, Place
from ngramspec._native.position cimport Position
from ngramspec._native.top_tokens cimport FAINT, RANKS, Row, age_bucket, rank_of
from ngramspec._native.store_reader cimport StoreReader, Votes


cdef inline int16_t* add_input(Candidates* all, int input) noexcept nogil:
    """Add an input to the candidates; return where to write their cells of it."""
    cdef int16_t* cells = all.cell[all.inputs]
    all.input[all.inputs] = <int8_t>input
    all.inputs += 1
    return cells


cdef inline void add_agreeing(Candidates* all, int input, int cell, int32_t token) noexcept nogil:
    """Add an input that tells whether a candidate is ``token``: if so, its cell is the next one."""
    set_cells(all.token, all.n, token, cell + 1, cell, add_input(all, input))


cdef inline void add_contexts(Position* at, const Slot** known, int32_t* own) noexcept nogil:
    """Describe how often the candidates followed each context.

    ``own`` is set to what the text says about each candidate: 0: nothing, 1: it followed one of the
    contexts, 2: it leads the longest one, 3: it is the match's token.
    """
    cdef Candidates* all = &at.candidates
    cdef const Slot* slot
    cdef int cells[LEADERS]
    cdef int followed[LEADERS]
    cdef int32_t leads = NONE
    cdef int i, m
    for i in range(all.n):
        own[i] = 0
    for m in range(CONTEXTS):
        slot = known[m]
        if slot == NULL:
            continue
        if m < ORDERS:
            leads = slot.token[leader(slot)]
        for i in range(LEADERS):
            cells[i] = context_cell(m, slot.count[i], slot.total - slot.count[i], i == 0)
            followed[i] = slot.count[i] != 0
        set_cells_of_three(
            all.token, all.n, slot.token, cells, followed, context_cell(m, 0, slot.total, False),
            add_input(all, m), own,
        )
    set_where(all.token, all.n, leads, 2, own)
    set_where(all.token, all.n, at.placed[MATCH], 3, own)


cdef inline void add_places(
    Position* at, const Place* places, int acceptance, int length
) noexcept nogil:
    """Describe whether a place suggests the candidates; ``acceptance``, ``length`` are buckets."""
    cdef Candidates* all = &at.candidates
    cdef const Place* resume = &places[RESUME]
    cdef const Place* near = &places[NEAR]
    if at.placed[MATCH] != NONE:
        add_agreeing(all, MATCH_INPUT, match_cell(length, acceptance), at.placed[MATCH])
    if at.placed[RESUME] != NONE:
        add_agreeing(
            all, RESUME_INPUT, resume_cell(resume.since + at.depth, resume.length),
            at.placed[RESUME],
        )
    if at.placed[NEAR] != NONE:
        add_agreeing(
            all, NEAR_INPUT, near_cell(resume.since, near.length + at.depth, near.since),
            at.placed[NEAR],
        )
    add_agreeing(all, SESSION_INPUT, session_cell(acceptance, length), NONE)


cdef inline void add_store(Position* at, StoreReader store, const int32_t* own) noexcept nogil:
    """Describe what a store says about the candidates; ``own`` is what the text says."""
    cdef Candidates* all = &at.candidates
    cdef const Votes* votes = &at.votes
    cdef int32_t which[ROOM]
    cdef int i, k, says, cell
    for i in range(all.n):
        which[i] = votes.n
    for k in range(votes.n):
        set_where(all.token, all.n, votes.token[k], k, which)
    if votes.total:
        cell = STORE_CELLS + STORE_BLOCK * store.earlier
        add_counts(at, STORE_INPUT, cell, votes.count, votes.total, which)
    if votes.others:
        cell = STORE_OTHER_CELLS + STORE_BLOCK * store.earlier
        add_counts(at, STORE_OTHER_INPUT, cell, votes.other, votes.others, which)
    if votes.resumed != NONE:
        cell = store_resume_cell(
            STORE_RESUME_CELLS + STORE_BLOCK * store.resume_earlier, store.since + at.depth,
            store.resume.length,
        )
        add_agreeing(all, STORE_RESUME_INPUT, cell, votes.resumed)
    if votes.n == 0:
        return
    add_where(at, store.earlier, which)
    for i in range(all.n):
        k = which[i]
        says = (k < votes.n) + (k == votes.leading_other) + 2 * (k == votes.leading)
        all.standing[i] = <int16_t>standing_of(store.earlier, own[i], says, votes.length)


cdef inline void add_counts(
    Position* at, int input, int first, const int32_t* counts, int total, const int32_t* which
) noexcept nogil:
    """Describe how many of a store's places are followed by each candidate."""
    cdef int16_t* cells = add_input(&at.candidates, input)
    cdef int i
    for i in range(at.candidates.n):
        cells[i] = <int16_t>store_cell(
            first, at.votes.length, counts[which[i]], total - counts[which[i]]
        )


cdef inline void add_where(Position* at, bint earlier, const int32_t* which) noexcept nogil:
    """Describe the places in the store that are followed by the candidates."""
    cdef const Votes* votes = &at.votes
    cdef int16_t* cells
    cdef float copied
    cdef int32_t distance
    cdef int i, rank
    if votes.familiar != NONE:
        cells = add_input(&at.candidates, FAMILIAR_INPUT)
        copied = votes.copied[votes.familiar]
        for i in range(at.candidates.n):
            rank = (votes.copied[which[i]] > 0) + (votes.copied[which[i]] == copied)
            cells[i] = <int16_t>familiar_cell(earlier, rank, copied, votes.length)
    cells = add_input(&at.candidates, NEAREST_INPUT)
    distance = votes.distance[votes.nearest]
    for i in range(at.candidates.n):
        rank = (which[i] < votes.n) + (votes.distance[which[i]] == distance)
        cells[i] = <int16_t>nearest_cell(earlier, rank, distance, votes.length)


cdef inline void add_row(
    Candidates* all, int input, int first, const Row* row, Py_ssize_t n
) noexcept nogil:
    """Describe the target's probabilities of the candidates after the preceding tokens.

    ``first`` is the input's first cell, ``n`` the number of tokens of the text.
    """
    cdef int16_t* cells = add_input(all, input)
    cdef int age = age_bucket(n - row.since)
    cdef int leading = row.probability[0] if row.n else <int>FAINT
    cdef int i, rank
    for i in range(all.n):
        rank = rank_of(row.token, row.n, all.token[i])
        cells[i] = <int16_t>top_cell(
            first, rank, leading if rank == RANKS else row.probability[rank], age
        )


cdef inline void add_head(Position* at, const HeadRow* row, const int32_t* own) noexcept nogil:
    """Describe a drafting head's probabilities; ``own`` is what the text says."""
    cdef Candidates* all = &at.candidates
    cdef int16_t* cells = add_input(all, HEAD_INPUT)
    cdef int16_t* deep = add_input(all, HEAD_DEPTH_INPUT)
    cdef int i, k, rank, chance, agrees, first = row.chance[0] if row.n else <int>FAINT_CHANCE
    for i in range(all.n):
        rank = rank_of(row.token, row.n, all.token[i])
        chance = first if rank == RANKS else row.chance[rank]
        agrees = own[i]
        for k in range(at.votes.n):
            if at.votes.token[k] == all.token[i]:
                agrees = max(agrees, 2 if k == at.votes.leading else 1)
        cells[i] = <int16_t>head_cell(rank, chance, min(agrees, AGREEMENTS - 1))
        deep[i] = <int16_t>head_depth_cell(rank, chance, at.depth)
