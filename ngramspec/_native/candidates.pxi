"""Collecting the candidates of a position, estimating them, and learning from the next token.

The candidates are the token at each place, the leading continuations of each context, and, where
there are none, the sequence's most frequent token. All candidates of a position have the same
inputs, in the same order. A cell describes each candidate by each input, and the calibration mixes
the cells to P(it is next). A position costs at most MAX_CANDIDATES estimates, in a chain nine. To
add a source of candidates, add places or contexts, its cells, its turn in ``collect`` and its
inputs in ``describe``. One thread at a time.
"""

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
    ContextKeys copied             # keys of the contexts after the match's token
    uint64_t live           # bits of the store's places that the path follows
    Votes votes             # the next tokens at these places
    const Slot* known[CONTEXTS]     # its contexts, while it is estimated; NULL: never occurred
    const TopRow* row          # the target's probabilities after its last token, or NULL
    const HeadRow* head     # the head's row for it, or NULL
    bint headed             # whether the path is a drafting head's
    int32_t leads           # the first token of the head's row, or NONE
    bint fallback           # whether the only candidate is the most frequent token
    int32_t recycled        # candidates from this index on are only top-k candidates
    int32_t ranked          # from this index on they are only a drafting head's
    int32_t best            # index of the most probable candidate
    Candidates candidates


cdef struct Other:          # a recent or unemitted token, offered where no candidate may be next
    int32_t token
    int32_t source
    int32_t cell
    float p                 # P(it is next)


cdef inline bint is_candidate(const Position* at, int32_t token) noexcept nogil:
    return index_of(at.candidates.token, at.candidates.n, token) != NONE


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
    if index_of(at.votes.token, at.votes.n, token) != NONE:
        return FROM_STORE
    for i in range(at.recycled, at.candidates.n):
        if token == at.candidates.token[i]:
            return FROM_TOP if i < at.ranked else FROM_HEAD
    return otherwise


cdef inline int count_bucket(int n) noexcept nogil:
    """The bucket 0..6 of a count: 0..3 unchanged, then up to 5, up to 9, and more."""
    return n if n <= 3 else 4 if n <= 5 else 5 if n <= 9 else 6


cdef inline int recent_cell(int count, int age) noexcept nogil:
    """A recent token's cell: by its count, and the bit length of the number of others since."""
    return RECENT_CELLS + AGES * count_bucket(count) + age


cdef inline int unemitted_cell(int back, int probability, bint recent) noexcept nogil:
    """An unemitted top-k token's cell: by positions since, probability, and recency."""
    return UNEMITTED_CELLS + (back * PROBABILITIES + probability) * 2 + recent

cdef extern from *:
    """
    static const signed char ngs_of_length[42] = {
        0, 1, 2, 3, 4, 5, 6, 7, 7, 8, 8, 8, 8, 9, 9, 9, 9, 9, 9, 9, 9,
        10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 11};
    """
    const signed char* OF_LENGTH "ngs_of_length"


cdef inline int length_bucket(int n) noexcept nogil:
    """The bucket 0..11 of a length: 0..6 unchanged, then up to 8, 12, 20, 40, and more."""
    return OF_LENGTH[min(n, 41)]


cdef inline int context_cell(int m, int count, int others, bint newest) noexcept nogil:
    """By the counts of the candidate and of others after context ``m``, and which was latest."""
    return newest + 2 * ((m * COUNTS + count_bucket(count)) * COUNTS + count_bucket(others))


cdef inline int resume_cell(int since, int length) noexcept nogil:
    """By the tokens since the copy was left, and how long the copy was."""
    return RESUME_CELLS + 2 * (LENGTHS * min(since, RESUMED - 1) + length_bucket(length))


cdef inline int near_cell(int since, int length, int distance) noexcept nogil:
    """By the tokens since the copy was left, the near match's length and its distance."""
    cdef int where = min(since, NEAR_SINCE - 1) * NEAR_LENGTHS + min(length, NEAR_LENGTHS - 1)
    cdef int far = min(length_bucket(distance) // 2, DISTANCES - 1)
    return NEAR_CELLS + 2 * (where * DISTANCES + far)


cdef inline int store_cell(int first, int length, int count, int others) noexcept nogil:
    """By the match's length in the store, and the counts of the candidate and of others."""
    cdef int counts = count_bucket(count) * COUNTS + count_bucket(others)
    return first + length_bucket(length) * COUNTS * COUNTS + counts


cdef inline int store_set(int own, int length, bint earlier) noexcept nogil:
    """Index of the weights: by the lengths of the text's own match and of the store's."""
    cdef int known = 1 if length < own else 2 if length < 8 else 3
    return 0 if length == 0 else KNOWN * earlier + known


cdef inline int top_cell(int rank, int probability, int age) noexcept nogil:
    """By rank, bucket of probability (the top one's if there is no rank), and bucket of age."""
    cdef int place = TOP_RANKS - 1 if rank == NONE else min(rank, TOP_RANKS - 2)
    return TOP_CELLS + (place * PROBABILITIES + probability) * AGED + age


cdef inline int distance_bucket(int n) noexcept nogil:
    """The bucket 0..7 of a distance: 0, then up to 4, 32, 256, 1024, 4096, more; 7: not known."""
    if n <= 32:
        return 0 if n == 0 else 1 if n <= 4 else 2
    return 3 if n <= 256 else 4 if n <= 1024 else 5 if n <= 4096 else 6 if n < 0x7fffffff else 7


cdef inline int nearest_cell(bint earlier, int rank, int distance, int length) noexcept nogil:
    """By the shortest distance, and the match's length in the store."""
    return NEAREST_CELLS + length_bucket(length) + LENGTHS * (
        distance_bucket(distance) + STORE_DISTANCES * (rank + RANKED * earlier)
    )


cdef inline int head_cell(int rank, int chance, int agreement) noexcept nogil:
    """By the head's rank and probability of the candidate, and by what else suggests it."""
    cdef int place = TOP_RANKS - 1 if rank == NONE else min(rank, TOP_RANKS - 2)
    return HEAD_CELLS + agreement + AGREEMENTS * (chance + CHANCES * place)


cdef inline int standing_of(bint earlier, int own, int store, int length) noexcept nogil:
    """Index of the further weights: by what text and store say, and the store's match length."""
    return 1 + length_bucket(length) + LENGTHS * (
        store + STORE_STANDINGS * (own + OWN_STANDINGS * earlier)
    )


cdef inline void set_cells(
    const Candidates* all, int32_t of, int cell, int other, int16_t* into
) noexcept nogil:
    """Set each candidate's cell: ``cell`` for the token ``of``, ``other`` for the others."""
    cdef int i
    for i in range(all.n):
        into[i] = <int16_t>(cell if all.token[i] == of else other)


cdef inline void set_where(
    const Candidates* all, int32_t of, int value, int32_t* into
) noexcept nogil:
    """Set the value of the candidate ``of``, if it is a candidate."""
    cdef int i = index_of(all.token, all.n, of)
    if i != NONE:
        into[i] = value


cdef inline int16_t* add_input(Candidates* all, int input) noexcept nogil:
    """Add an input to the candidates; return where to write their cells of it."""
    cdef int16_t* cells = all.cell[all.inputs]
    all.input[all.inputs] = <int8_t>input
    all.inputs += 1
    return cells


cdef inline void add_agreeing(Candidates* all, int input, int cell, int32_t token) noexcept nogil:
    """Add an input that tells whether a candidate is ``token``: if so, its cell is the next one."""
    set_cells(all, token, cell + 1, cell, add_input(all, input))


cdef inline void add_contexts(Position* at, int32_t* own) noexcept nogil:
    """Describe how often the candidates followed each context.

    ``own`` is set to what the text says about each candidate: 0: nothing, 1: it followed one of the
    contexts, 2: it leads the longest one, 3: it is the match's token.
    """
    cdef Candidates* all = &at.candidates
    cdef const Slot* slot
    cdef int16_t* cells
    cdef int32_t leads = NONE
    cdef int i, k, m
    for i in range(all.n):
        own[i] = 0
    for m in range(CONTEXTS):
        slot = at.known[m]
        if slot == NULL:
            continue
        if m < ORDERS:
            leads = slot.token[leader(slot)]
        cells = add_input(all, m)
        set_cells(all, NONE, 0, context_cell(m, 0, slot.total, False), cells)
        for k in range(LEADERS):
            for i in range(all.n):
                if all.token[i] == slot.token[k]:
                    cells[i] = <int16_t>context_cell(
                        m, slot.count[k], slot.total - slot.count[k], k == 0
                    )
                    own[i] |= slot.count[k] != 0
    set_where(all, leads, 2, own)
    set_where(all, at.placed[MATCH], 3, own)


cdef inline void add_places(
    Position* at, const Place* places, int length
) noexcept nogil:
    """Describe whether a place suggests the candidates; ``length`` is a bucket."""
    cdef Candidates* all = &at.candidates
    cdef const Place* resume = &places[RESUME]
    cdef const Place* near = &places[NEAR]
    if at.placed[MATCH] != NONE:
        add_agreeing(all, MATCH_INPUT, MATCH_CELLS + 2 * length, at.placed[MATCH])
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
    add_agreeing(all, SESSION_INPUT, SESSION_CELLS + length, NONE)


cdef inline void add_counts(
    Position* at, int input, int first, const int32_t* counts, int total, const int32_t* which
) noexcept nogil:
    """Describe how many of a store's places are followed by each candidate."""
    cdef int16_t* cells = add_input(&at.candidates, input)
    cdef int i, count
    for i in range(at.candidates.n):
        count = counts[which[i]]
        cells[i] = <int16_t>store_cell(first, at.votes.length, count, total - count)


cdef inline void add_store(Position* at, bint earlier, const int32_t* own) noexcept nogil:
    """Describe what a store says about the candidates; ``own`` is what the text says."""
    cdef Candidates* all = &at.candidates
    cdef const Votes* votes = &at.votes
    cdef int16_t* cells
    cdef int32_t which[MAX_CANDIDATES]
    cdef int32_t shortest
    cdef int i, k, says, first = STORE_BLOCK * earlier
    for i in range(all.n):
        which[i] = votes.n
    for k in range(votes.n):
        set_where(all, votes.token[k], k, which)
    if votes.total:
        add_counts(at, STORE_INPUT, STORE_CELLS + first, votes.count, votes.total, which)
    if votes.others:
        first += STORE_OTHER_CELLS
        add_counts(at, STORE_OTHER_INPUT, first, votes.other, votes.others, which)
    if votes.n == 0:
        return
    cells = add_input(all, NEAREST_INPUT)
    shortest = votes.distance[votes.nearest]
    for i in range(all.n):
        k = which[i]
        cells[i] = <int16_t>nearest_cell(
            earlier, (k < votes.n) + (votes.distance[k] == shortest), shortest, votes.length
        )
        says = (k < votes.n) + (k == votes.leading_other) + 2 * (k == votes.leading)
        all.standing[i] = <int16_t>standing_of(earlier, own[i], says, votes.length)


cdef inline void add_row(Candidates* all, const TopRow* row, Py_ssize_t n) noexcept nogil:
    """Describe the target's probabilities after the last token; ``n`` tokens are committed."""
    cdef int16_t* cells = add_input(all, TOP_INPUT)
    cdef int age = age_bucket(n - row.since)
    cdef int leading = row.probability[0] if row.n else <int>FAINT
    cdef int i, rank
    for i in range(all.n):
        rank = index_of(row.token, row.n, all.token[i])
        cells[i] = <int16_t>top_cell(rank, leading if rank == NONE else row.probability[rank], age)


cdef inline void add_head(Position* at, const int32_t* own) noexcept nogil:
    """Describe a drafting head's probabilities; ``own`` is what the text says."""
    cdef const HeadRow* row = at.head
    cdef Candidates* all = &at.candidates
    cdef int16_t* cells = add_input(all, HEAD_INPUT)
    cdef int i, k, rank, chance, agrees, first = row.chance[0] if row.n else <int>FAINT_CHANCE
    for i in range(all.n):
        rank = index_of(row.token, row.n, all.token[i])
        chance = first if rank == NONE else row.chance[rank]
        agrees = own[i]
        k = index_of(at.votes.token, at.votes.n, all.token[i])
        if k != NONE:
            agrees = max(agrees, 2 if k == at.votes.leading else 1)
        cells[i] = <int16_t>head_cell(rank, chance, min(agrees, AGREEMENTS - 1))


cdef class Estimator(TokenStructure):
    """Estimates P(next) of the candidates of one sequence; the arguments are ValueEngine's."""

    cdef readonly Calibration calibration
    cdef CommittedText committed
    cdef StoreReader store  # or None
    cdef TopTokens top_tokens  # or None
    cdef HeadRows head      # or None
    cdef bint counts, falls_back
    cdef Unemitted unemitted[UNEMITTED]  # top-k tokens that were not emitted before the last tree
    cdef int unemitted_n

    def __cinit__(
        self, Calibration calibration not None, bint copies=True, bint counts=True,
        bint falls_back=True, int min_match=2, StoreSource store=None, bint recycles=False,
        bint headed=False, StorePrior familiar=None,
    ):
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        self.name, self.calibration = "value engine", calibration
        self.committed = CommittedText(min_match if copies else 0)
        self.counts, self.falls_back = counts, falls_back
        self.store = None if store is None else StoreReader(store, familiar)
        self.top_tokens = TopTokens() if recycles else None
        self.head = HeadRows() if headed else None

    cdef void estimate(self, Position* at, float least) noexcept nogil:
        """Find the tokens that may come next at a position, and their probabilities.

        The position has its context, contexts, depth, follows and length set. A kept continuation
        with a higher share than ``least`` is a candidate; > 1: only leaders.
        """
        cdef Candidates* all = &at.candidates
        cdef int i
        at.head = NULL
        if self.head is not None:
            at.head = self.head.at(at.headed, at.depth)
        at.leads = at.head.token[0] if at.head != NULL and at.head.n else NONE
        for i in range(PLACES):
            at.placed[i] = self.committed.token_at(i, at.depth) if at.follows[i] else NONE
        if at.follows[MATCH]:
            at.context[ORDERS] = at.placed[MATCH]
            at.copied = keys_of(at.context + ORDERS + 1, at.have + 1, self.committed.table.salt)
            self.committed.prefetch(&at.copied)  # looked up if this token is drafted
        if self.store is not None:
            self.store.vote(at.live, at.depth, &at.votes)
        else:
            at.votes.n = at.votes.length = 0
            at.votes.nearest = NONE
        at.row = NULL
        if self.top_tokens is not None and at.have:
            at.row = self.top_tokens.row_of(at.context[ORDERS - 1])
        all.n = self.collect(at, least)
        at.best = all.inputs = 0
        if all.n == 0:
            return
        self.describe(at)
        self.calibration.mix(all)
        for i in range(1, all.n):
            if all.odds[i] > all.odds[at.best]:
                at.best = i

    cdef void describe(self, Position* at) noexcept nogil:
        """Set the inputs of a position's candidates, and the cells and weights of each."""
        cdef Candidates* all = &at.candidates
        cdef int32_t own[MAX_CANDIDATES]
        cdef int32_t resumed = at.placed[RESUME]
        cdef int orders = 0, length, weights
        while orders < ORDERS and at.known[orders] != NULL:
            orders += 1
        length = length_bucket(max(at.length, orders))
        weights = 3 * length
        if self.store is not None:
            weights += 3 * LENGTHS * store_set(
                max(at.length, orders), at.votes.length, self.store.earlier
            )
        if at.head != NULL:
            weights += HEADLESS_SETS
        if resumed == NONE:
            set_cells(all, NONE, 0, weights, all.set)
        else:
            set_cells(all, resumed, weights + 1, weights + 2, all.set)
        set_cells(all, NONE, 0, 0, all.standing)
        add_contexts(at, own)
        add_places(at, self.committed.places, length)
        if self.store is not None:
            add_store(at, self.store.earlier, own)
        if at.row != NULL:
            add_row(all, at.row, self.committed.text.n)
        if at.head != NULL:
            add_head(at, own)

    cdef int collect(self, Position* at, float least) noexcept nogil:
        """Collect the different tokens that may come next; return their number.

        On ties, earlier ones are preferred. Where branches are wanted, ``least`` is at most 1.
        """
        cdef int32_t* tokens = at.candidates.token
        cdef const Slot** known = at.known
        cdef const TopRow* row = at.row
        cdef const HeadRow* head = at.head
        cdef const Votes* votes = &at.votes
        cdef int count = 0, m, i
        if at.placed[MATCH] != NONE:
            tokens[0] = at.placed[MATCH]
            count = 1
        if at.leads != NONE:
            count = with_token(tokens, count, at.leads)
        if self.counts:
            for m in range(ORDERS - 1, -1, -1):
                if known[m] != NULL:
                    count = with_token(tokens, count, known[m].token[leader(known[m])])
        for i in range(MATCH + 1, PLACES):
            if at.placed[i] != NONE:
                count = with_token(tokens, count, at.placed[i])
        if least <= 1:  # of a store's tokens all above the share, else the leading ones
            for i in range(votes.n):
                if votes.count[i] > least * votes.total or votes.other[i] > least * votes.others:
                    count = with_token(tokens, count, votes.token[i])
        elif votes.n:
            count = with_token(tokens, count, votes.token[votes.leading])
            if votes.others:
                count = with_token(tokens, count, votes.token[votes.leading_other])
            count = with_token(tokens, count, votes.token[votes.nearest])
        if self.counts and known[SKIP] != NULL:
            count = with_token(tokens, count, known[SKIP].token[leader(known[SKIP])])
        if self.counts and least <= 1:
            for m in range(ORDERS - 1, -1, -1):
                if known[m] != NULL:
                    for i in range(LEADERS):
                        if known[m].count[i] > least * known[m].total:
                            count = with_token(tokens, count, known[m].token[i])
        at.recycled = count
        for i in range(row.n if row != NULL else 0):
            if i == 0 or (least <= 1 and row.probability[i] < FAINT):
                count = with_token(tokens, count, row.token[i])
        at.ranked = count
        for i in range(1, head.n if head != NULL and least <= 1 else 0):
            if head.chance[i] < FAINT_CHANCE:
                count = with_token(tokens, count, head.token[i])
        at.fallback = count == 0
        if count == 0 and self.falls_back and self.committed.unigrams.total:
            tokens[0] = self.committed.unigrams.token[leader(&self.committed.unigrams)]
            count = at.recycled = at.ranked = 1
        return count

    cdef int others(self, const Position* at, float rest, float least, Other* into) noexcept nogil:
        """Recent and unemitted tokens with shares of ``rest``, where no candidate is next.

        Those that are candidates, or whose share is at most ``least``, are left out. ``into`` has
        room for RECENT + UNEMITTED; their number is returned.
        """
        cdef const Recent* recent = &self.committed.recent
        cdef const Unemitted* each
        cdef int unemitted = self.unemitted_n if at.depth == 0 else 0
        cdef int i, n = 0, age = 0
        for i in range(recent.used):
            while i >> age:
                age += 1
            if not is_among(self.unemitted, unemitted, recent.token[i]):
                into[n].token, into[n].source = recent.token[i], FROM_UNIGRAM
                into[n].cell = recent_cell(recent.count[i], age)
                n += self.is_other(at, rest, least, &into[n])
        for i in range(unemitted):
            each = &self.unemitted[i]
            into[n].token, into[n].source = each.token, FROM_TOP
            into[n].cell = unemitted_cell(each.back, each.probability, each.recent)
            n += self.is_other(at, rest, least, &into[n])
        return n

    cdef inline bint is_other(
        self, const Position* at, float rest, float least, Other* other
    ) noexcept nogil:
        """Set the share of a token; whether it is large enough and the token no candidate."""
        other.p = rest * self.calibration.share(other.cell)
        return at.reach * other.p > least and not is_candidate(at, other.token)

    cdef void learn_position(self, const Position* at, int32_t token, bint tree) noexcept nogil:
        """Compare a position's candidates, in a tree also recent tokens, with the next token."""
        cdef const Candidates* all = &at.candidates
        cdef Other others[RECENT + UNEMITTED]
        cdef int i
        cdef bint right, any = False
        for i in range(all.n):
            right = all.token[i] == token
            self.calibration.learn(all, i, all.p[i] if tree else squash(all.odds[i]), right)
            any = any or right
        if any or not tree or not self.falls_back:
            return
        for i in range(self.others(at, 1, -1, others)):
            self.calibration.learn_share(others[i].cell, others[i].token == token)


cdef inline int with_token(int32_t* tokens, int n, int32_t token) noexcept nogil:
    """Append a token unless it is among the ``n`` tokens; the new number of tokens."""
    if index_of(tokens, n, token) != NONE:
        return n
    tokens[n] = token
    return n + 1
