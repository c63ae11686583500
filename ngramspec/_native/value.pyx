"""Drafting by value: copies, resumed copies and n-gram counts under one calibrated estimate.

At every position the candidates are the token behind the longest known match, the leading
continuations of the last one to three tokens and of the one before the last, the token where the
last copy would go on past a substituted one, and the one behind the best match around there; the
sequence's most frequent token where nothing else is known. Each gets P(it is next) from the
calibration. In a chain the best one is drafted and the next position builds on it; in a tree they
all are, and the tokens used lately, best-first by the probability of the path (frontier.pxd). The
draft ends where the expected tokens per cost are highest: Theorem 3.8 of Leviathan et al. 2023 with
a measured cost and a probability per node.

The longest known match is the longest among the one read along so far and the last occurrences of
the last two and three tokens. Bounded work, whatever the text: a step compares at most
``FAR + 8 * AROUND`` tokens, a position costs four look-ups and ``MOST_CANDIDATES`` at most (in a
chain seven), a committed token four counts. One thread at a time.
"""

from libc.stdint cimport int8_t, int16_t, int32_t, uint64_t
from libc.stdlib cimport free

cimport numpy as cnp

from ngramspec._native.calibration cimport (
    CONTEXTS, COUNTS, LENGTHS, MATCH, MATCH_CELLS, MOODS, NEAR, NEAR_CELLS, RESUME, RESUME_CELLS,
    SESSION, SESSION_CELLS, Calibration, Candidate,
    count_bucket, squash,
)
from ngramspec._native.common cimport (
    MAX_TOKENS, NONE, array_tokens, costs_of, first_negative, gamma_of, raise_negative, reserve,
    start_of, token_view,
)
from ngramspec._native.contexts cimport LEADERS, ContextTable, count_of, leader, note
from ngramspec._native.frontier cimport Frontier, Node, Ranked, child, insert, ranked
from ngramspec._native.recent cimport use
from ngramspec._native.xxh64 cimport xxh64

cnp.import_array()

cdef enum:
    FEW = 64            # tokens committed without releasing the GIL
    LOOKAHEAD = 12      # positions looked at beyond the best end so far
    FAR = 64            # tokens compared to find a match's length, at each of three places
    BEFORE = 16         # around a resumed copy: positions looked at before
    BEHIND = 32         # and behind it
    FADED = 2048        # tokens behind which the counts of recent ones have faded
    SKIP_SEED = 32      # of the context that skips a token; the others' is their order
    FROM_COPY = 0
    FROM_RESUME = 1
    FROM_NGRAM = 2
    FROM_UNIGRAM = 3

# Probabilities of reaching a position:
cdef float HOPELESS = 0.01      # below, a chain ends
cdef float HOPELESS_NODE = 0.004    # below, a tree does
# Up to here a tree is not continued, but where it copies. 0.06 would be a tie of counts, which
# rounding decides.
cdef float FAINT = 0.0597
cdef float LIKELY = 0.5         # above, and no candidate is next: guesses are worth their time
cdef float MOOD_RATE = 0.15


cdef inline int length_bucket(int n) noexcept nogil:
    """0..6 as they are, then up to 8, 12, 20, 40, and more: 0..11."""
    if n <= 6:
        return n
    return 7 if n <= 8 else 8 if n <= 12 else 9 if n <= 20 else 10 if n <= 40 else 11


cdef inline Keys keys_of(const int32_t* end, Py_ssize_t n, uint64_t salt) noexcept nogil:
    """Keys of the contexts of a text of ``n`` tokens that ends before ``end``."""
    cdef Keys keys
    keys.of[0] = xxh64(end - 1, 1, 2, salt) if n >= 1 else 0
    keys.of[1] = xxh64(end - 2, 2, 3, salt) if n >= 2 else 0
    keys.of[2] = xxh64(end - 3, 3, 4, salt) if n >= 3 else 0
    keys.of[3] = xxh64(end - 2, 1, SKIP_SEED, salt) if n >= 2 else 0
    return keys


cdef class ValueEngine:
    """One sequence's structures, and the drafting over them.

    Args:
        calibration: shared by all sequences of a drafter.
        copies: whether to draft from places that are read along.
        counts: whether to draft from n-gram counts.
        falls_back: whether to draft the most frequent token where nothing else is known.
        min_match: shortest match to copy from, >= 1.
    """

    def __cinit__(
        self, Calibration calibration not None, bint copies=True, bint counts=True,
        bint falls_back=True, int min_match=2,
    ):
        cdef int i
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        self.calibration = calibration
        self.copies, self.counts, self.falls_back = copies, counts, falls_back
        self.min_match = min_match
        self.table = ContextTable()
        self.salt = self.table.salt
        for i in range(LEADERS):
            self.unigrams.token[i] = NONE
        self.match.at = self.resume.at = self.near.at = NONE
        self.mood = 0.5

    def __dealloc__(self):
        free(self.text)
        free(self.frontier.nodes)
        free(self.frontier.order)
        free(self.positions)

    def __len__(self):
        """Tokens committed."""
        return self.n

    def draft(self, Py_ssize_t gamma, cost=None):
        """Draft a chain of at most ``gamma`` tokens.

        Args:
            gamma: 0..65536.
            cost: float32 (gamma + 2,) or longer, cost[n] of a forward of n positions; None: no
                limit but gamma and hopelessness.

        Returns:
            (tokens int32, confidence float32, source int8), each (n,): source is 0 for copy, 1
            for a resumed copy, 2 for n-gram counts, 3 for the most frequent token.
        """
        return self.drafted(self.propose(gamma, cost, False))

    def draft_tree(self, Py_ssize_t gamma, cost=None):
        """Draft a tree of at most ``gamma`` tokens, the most probable to be reached first.

        Args:
            gamma, cost: as of ``draft``.

        Returns:
            (tokens int32, parents int32, confidence float32, source int8), each (n,): parents[i]
            is -1 for the last committed token, else below i.
        """
        cdef cnp.npy_intp i, n = self.propose(gamma, cost, True)
        tokens, confidence, source = self.drafted(n)
        parents = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT32)
        for i in range(n):
            (<int32_t*>cnp.PyArray_DATA(parents))[i] = ranked(&self.frontier, <int>i).parent
        return tokens, parents, confidence, source

    def extend(self, tokens):
        """Append committed tokens, int32 (n,), and learn how the last draft's candidates did.

        Raises:
            TypeError, ValueError: not an int32 array, or a negative id; nothing was appended.
            MemoryError: the tokens before the failure are in, the engine stays valid.
        """
        cdef const int32_t[::1] view  # without the GIL others could free what is not held
        cdef Py_ssize_t count = 0, bad, old
        cdef const int32_t* new = array_tokens(tokens, &count)
        cdef int failed
        if new == NULL or count >= FEW:
            view = token_view(tokens)
            new, count = start_of(view), view.shape[0]
        if count == 0:
            return
        if count > MAX_TOKENS - self.n:
            raise OverflowError(f"a value engine holds at most {MAX_TOKENS} tokens")
        bad = first_negative(new, count)
        if bad != NONE:
            raise_negative(new[bad], bad)
        self.idle()
        self.learn(new, count)
        old = self.n
        if count < FEW:
            failed = self.append(new, count)
        else:
            self.busy = True
            with nogil:
                failed = self.append(new, count)
            self.busy = False
        self.follow(self.n - old)
        if failed:
            raise MemoryError(f"value engine at {self.n} tokens")

    def sizeof(self):
        """Bytes allocated, without the shared calibration."""
        return (
            sizeof(ValueEngine)
            + self.text_cap * sizeof(int32_t)
            + self.frontier.node_cap * sizeof(Node)
            + self.frontier.order_cap * sizeof(Ranked)
            + self.position_cap * sizeof(Position)
            + self.table.sizeof()
        )

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        self.idle()
        self.table.check_integrity()
        for at in (self.match.at, self.resume.at, self.near.at):
            assert at == NONE or 0 <= at < self.n

    cdef int idle(self) except -1:
        if self.busy:
            raise RuntimeError("this value engine is being used by another thread")
        return 0

    cdef int append(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        """Count ``n`` tokens: 0, or -1 without memory."""
        cdef Keys next
        cdef Py_ssize_t i
        cdef int m
        if self.n + n > self.text_cap and reserve(
            <void**>&self.text, &self.text_cap, 2 * (self.n + n) + 64, sizeof(int32_t)
        ) < 0:
            return -1
        for i in range(n):
            self.text[self.n] = tokens[i]
            next = keys_of(self.text + self.n + 1, self.n + 1, self.salt)
            self.warm(&next)  # counted one token later
            for m in range(CONTEXTS):
                if self.tail.of[m]:
                    if self.table.count(self.tail.of[m], tokens[i], <int32_t>self.n) < 0:
                        return -1
            note(&self.unigrams, tokens[i], <int32_t>self.n)
            self.tail = next
            self.n += 1
        return 0

    cdef void look_up(self, const Keys* keys, const Slot** known) noexcept nogil:
        """Find a position's contexts; one that is unknown has no longer one that is known."""
        cdef int m
        for m in range(CONTEXTS):
            known[m] = NULL
        for m in range(CONTEXTS):
            if keys.of[m] and (m == 0 or m == CONTEXTS - 1 or known[m - 1] != NULL):
                known[m] = self.table.find(keys.of[m])

    cdef void warm(self, const Keys* keys) noexcept nogil:
        cdef int m
        for m in range(CONTEXTS):
            self.table.warm(keys.of[m])

    cdef cnp.npy_intp propose(self, Py_ssize_t gamma, cost, bint tree) except -1:
        """Draft into the frontier; how many of its nodes are worth verifying."""
        cdef const float* costs
        cdef Frontier* f = &self.frontier
        cdef int most = gamma_of(gamma), room = max(most, 1)
        costs = NULL if cost is None else costs_of(cost, most + 2)
        self.idle()
        if (
            reserve(<void**>&f.nodes, &f.node_cap, room, sizeof(Node)) < 0
            or reserve(<void**>&f.order, &f.order_cap, room, sizeof(Ranked)) < 0
            or reserve(<void**>&self.positions, &self.position_cap, room, sizeof(Position)) < 0
        ):
            raise MemoryError(f"a draft of {most} tokens")
        f.limit = most
        f.n = 0
        self.tree = tree
        if tree:
            self.recent_n = max(self.recent_n, self.n - FADED)
            while self.recent_n < self.n:
                use(&self.recent, self.text[self.recent_n])
                self.recent_n += 1
        return self.fill(costs)

    cdef object drafted(self, cnp.npy_intp n):
        """The first ``n`` nodes: tokens, confidence, source."""
        cdef cnp.npy_intp i
        cdef const Node* node
        tokens = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT32)
        confidence = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT32)
        source = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT8)
        for i in range(n):
            node = ranked(&self.frontier, <int>i)
            (<int32_t*>cnp.PyArray_DATA(tokens))[i] = node.token
            (<float*>cnp.PyArray_DATA(confidence))[i] = node.p
            (<int8_t*>cnp.PyArray_DATA(source))[i] = <int8_t>node.source
        return tokens, confidence, source

    cdef int fill(self, const float* cost) noexcept nogil:
        """Draft best-first; the number of nodes, in order, worth verifying."""
        cdef const Frontier* f = &self.frontier
        cdef int k, best = 0
        cdef float reach, expected = 1, value, highest = 0 if cost == NULL else 1 / cost[1]
        cdef float hopeless = HOPELESS_NODE if self.tree else HOPELESS
        self.begin()
        for k in range(f.limit):
            if k >= f.n:
                break
            reach = f.order[k].reach
            expected += reach
            value = 0 if cost == NULL else expected / cost[k + 2]
            if cost == NULL or value >= highest:
                highest = value
                best = k + 1
            if reach < hopeless or k + 1 >= best + LOOKAHEAD or k + 1 == f.limit:
                break
            if not self.tree or (
                reach > (HOPELESS if self.copies_on(k) else FAINT)
                and (f.n < f.limit or reach > f.order[f.n - 1].reach)
            ):
                self.expand(k)
        return best

    cdef bint copies_on(self, int k) noexcept nogil:
        """Whether the path to the ``k``-th node is the match's: one look-up continues it."""
        cdef const Node* node = ranked(&self.frontier, k)
        cdef const Position* at = &self.positions[node.at]
        return at.along and node.token == at.votes[0]

    cdef void begin(self) noexcept nogil:
        """Judge what may come behind the committed tokens."""
        cdef const Slot* known[CONTEXTS]
        cdef Position* root = &self.positions[0]
        cdef int m, have = <int>min(self.n, 3)
        for m in range(have):
            root.context[3 - have + m] = self.text[self.n - have + m]
        root.have = have
        self.look_up(&self.tail, known)
        self.find_match(known)
        self.find_near()
        root.depth = 0
        root.reach = 1
        root.along = self.match.at != NONE
        root.nearby = self.near.at != NONE
        root.length = self.match.length
        self.position_n = 1
        self.judge(root, known)
        self.branch(root, NONE)

    cdef void expand(self, int k) noexcept nogil:
        """Judge what may come behind the ``k``-th node."""
        cdef Node* node = ranked(&self.frontier, k)
        cdef const Position* above = &self.positions[node.at]
        cdef Position* p = &self.positions[self.position_n]
        cdef const Slot* known[CONTEXTS]
        cdef Keys keys
        node.position = self.position_n
        self.position_n += 1
        p.context[0], p.context[1], p.context[2] = above.context[1], above.context[2], node.token
        p.have = min(above.have + 1, 3)
        p.depth = above.depth + 1
        p.reach = self.frontier.order[k].reach
        p.along = above.along and node.token == above.votes[0]
        p.nearby = above.nearby and node.token == above.votes[2]
        p.length = above.length + 1 if p.along else 0
        keys = above.guessed if p.along else keys_of(p.context + 3, p.have, self.salt)
        self.look_up(&keys, known)
        self.judge(p, known)
        self.branch(p, k)

    cdef void judge(self, Position* at, const Slot** known) noexcept nogil:
        """Find what may come at a position, and how probably."""
        cdef int32_t tokens[MOST_CANDIDATES]
        cdef int32_t* votes = at.votes
        cdef int resumed = min(self.resume.since + at.depth, 5)
        cdef int orders = 0, i, m, bucket, mood, set
        cdef Candidate* each
        cdef int32_t token, times
        cdef bint newest
        votes[0] = votes[1] = votes[2] = NONE
        if at.along:  # where it reaches the text's end, it goes on with itself
            votes[0] = self.text[self.match.at + at.depth % (self.n - self.match.at)]
            at.context[3] = votes[0]
            at.guessed = keys_of(at.context + 4, at.have + 1, self.salt)
            self.warm(&at.guessed)  # looked up if this is drafted
        if self.resume.at != NONE and self.resume.at + at.depth < self.n:
            votes[1] = self.text[self.resume.at + at.depth]
        if at.nearby and self.near.at + at.depth < self.n:
            votes[2] = self.text[self.near.at + at.depth]
        at.count = self.gather(at, known, tokens)
        at.best = 0
        while orders < CONTEXTS - 1 and known[orders] != NULL:
            orders += 1
        bucket = length_bucket(max(at.length, orders))
        mood = min(<int>(MOODS * self.mood), MOODS - 1)
        for i in range(at.count):
            token = tokens[i]
            each = &at.candidates[i]
            each.token = token
            each.used = 0
            set = 3 * bucket
            for m in range(CONTEXTS):
                if known[m] == NULL:
                    continue
                times = count_of(known[m], token, &newest)
                put(each, m, newest + 2 * (
                    (m * COUNTS + count_bucket(times)) * COUNTS
                    + count_bucket(known[m].total - times)
                ))
            if votes[0] != NONE:
                put(each, MATCH, MATCH_CELLS + (token == votes[0]) + 2 * (MOODS * bucket + mood))
            if votes[1] != NONE:
                set += 1 if token == votes[1] else 2
                put(each, RESUME, RESUME_CELLS + (token == votes[1]) + 2 * (
                    LENGTHS * resumed + length_bucket(self.resume.length)
                ))
            if votes[2] != NONE:
                put(each, NEAR, NEAR_CELLS + (token == votes[2]) + 2 * (
                    (9 * min(self.resume.since, 7) + min(self.near.length + at.depth, 8)) * 6
                    + min(length_bucket(self.near.since) // 2, 5)
                ))
            put(each, SESSION, SESSION_CELLS + LENGTHS * mood + bucket)
            each.set = <int16_t>set
            self.calibration.mix(each)
            if each.odds > at.candidates[at.best].odds:
                at.best = i

    cdef void branch(self, const Position* at, int parent) noexcept nogil:
        """Offer what may come at a position: of a chain the best candidate, of a tree each.

        What the candidates leave of the probability is shared by the tokens used lately.
        """
        cdef float p[MOST_CANDIDATES]
        cdef float rest = 1, scale
        cdef int i, age = 0
        if not self.tree:
            if at.count:
                p[0] = squash(at.candidates[at.best].odds)
                self.offer(at, parent, at.candidates[at.best].token, p[0], at.guesses)
            return
        for i in range(at.count):
            p[i] = squash(at.candidates[i].odds)
            rest -= p[i]
        scale = 1 if rest >= 0 else 1 / (1 - rest)
        for i in range(at.count):
            self.offer(at, parent, at.candidates[i].token, p[i] * scale, at.guesses)
        if not self.falls_back or rest * at.reach <= LIKELY:
            return
        for i in range(self.recent.used):
            while i >> age:
                age += 1
            p[0] = rest * self.calibration.share(self.recent.count[i], age)
            if at.reach * p[0] > HOPELESS_NODE and not is_candidate(at, self.recent.token[i]):
                self.offer(at, parent, self.recent.token[i], p[0], True)

    cdef void offer(
        self, const Position* at, int parent, int32_t token, float p, bint guess
    ) noexcept nogil:
        cdef Node* node = insert(&self.frontier, at.reach * p)
        if node == NULL:
            return
        node.token = token
        node.p = p
        node.parent = parent
        node.at = <int32_t>(at - self.positions)
        node.position = NONE
        node.source = (
            FROM_COPY if token == at.votes[0]
            else FROM_RESUME if token == at.votes[1] or token == at.votes[2]
            else FROM_UNIGRAM if guess else FROM_NGRAM
        )

    cdef int gather(self, Position* at, const Slot** known, int32_t* tokens) noexcept nogil:
        """The different tokens that may come next, in the order of preference among equals."""
        cdef int32_t* votes = at.votes
        cdef int count = 0, m, i
        cdef float least
        if votes[0] != NONE:
            tokens[0] = votes[0]
            count = 1
        if self.counts:
            for m in range(CONTEXTS - 2, -1, -1):
                if known[m] != NULL:
                    count = with_token(tokens, count, known[m].token[leader(known[m])])
        for m in range(1, PLACES):
            if votes[m] != NONE:
                count = with_token(tokens, count, votes[m])
        m = CONTEXTS - 1
        if self.counts and known[m] != NULL:
            count = with_token(tokens, count, known[m].token[leader(known[m])])
        if self.counts and self.tree and at.reach > FAINT:
            least = FAINT / at.reach
            for m in range(CONTEXTS - 2, -1, -1):
                if known[m] != NULL:
                    for i in range(LEADERS):
                        if known[m].count[i] > least * known[m].total:
                            count = with_token(tokens, count, known[m].token[i])
        at.guesses = count == 0
        if count == 0 and self.falls_back and self.unigrams.total:
            tokens[0] = self.unigrams.token[leader(&self.unigrams)]
            count = 1
        return count

    cdef int agreement(self, Py_ssize_t at, int most) noexcept nogil:
        """How many tokens before ``at`` equal those at the text's end, counted up to ``most``."""
        cdef int n = 0
        most = <int>min(<Py_ssize_t>most, at)
        while n < most and self.text[at - 1 - n] == self.text[self.n - 1 - n]:
            n += 1
        return n

    cdef void find_match(self, const Slot** known) noexcept nogil:
        """Go to the last occurrence of the last tokens where it agrees longer than the match."""
        cdef int m, length
        cdef int32_t at
        if not self.copies:
            return
        if self.match.at == NONE:
            self.match.length = 0
        for m in range(min(CONTEXTS - 2, 2), -1, -1):
            if m + 1 < min(self.min_match, 2) or known[m] == NULL:
                continue
            at = known[m].last
            if at == self.match.at or at >= self.n or self.match.length >= FAR:
                continue
            length = self.agreement(at, FAR)
            if length > self.match.length:
                self.match.at = at
                self.match.length = length
        if self.match.length < self.min_match:
            self.match.at = NONE
            self.match.length = 0

    cdef void find_near(self) noexcept nogil:
        """The place around the resumed copy that agrees longest, the nearest of equals."""
        cdef Py_ssize_t at, first, end
        cdef int length, distance
        cdef int32_t last
        self.near.at = NONE
        self.near.length = 0
        if self.resume.at == NONE:
            return
        last = self.text[self.n - 1]
        first = max(self.resume.at - BEFORE, 1)
        end = min(self.resume.at + BEHIND, self.n)
        for at in range(first, end):
            if self.text[at - 1] != last or at == self.resume.at or at == self.match.at:
                continue
            length = self.agreement(at, 8)
            distance = <int>(at - self.resume.at if at > self.resume.at else self.resume.at - at)
            if length > self.near.length or (
                length == self.near.length and distance < self.near.since
            ):
                self.near.at = <int32_t>at
                self.near.length = length
                self.near.since = distance

    cdef void learn(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        """Compare the last proposal with what was committed, as far as they agree."""
        cdef const Frontier* f = &self.frontier
        cdef int i, age, at = 0, k = NONE
        cdef Py_ssize_t j
        cdef Position* p
        cdef bint right, any
        if self.position_n == 0:
            return
        for j in range(n):
            p = &self.positions[at]
            any = False
            for i in range(p.count):
                right = p.candidates[i].token == tokens[j]
                self.calibration.learn(&p.candidates[i], right)
                any = any or right
            if p.count:
                right = p.candidates[p.best].token == tokens[j]
                self.mood += MOOD_RATE * (<float>right - self.mood)
            if not any and self.tree and self.falls_back:
                age = 0
                for i in range(self.recent.used):
                    while i >> age:
                        age += 1
                    if not is_candidate(p, self.recent.token[i]):
                        right = self.recent.token[i] == tokens[j]
                        self.calibration.learn_share(self.recent.count[i], age, right)
            k = child(f, k, tokens[j])
            if k == NONE or ranked(f, k).position == NONE:
                break
            at = ranked(f, k).position
        self.position_n = 0

    cdef void follow(self, Py_ssize_t n) noexcept nogil:
        """Move the places on over the ``n`` tokens just committed."""
        cdef Py_ssize_t old = self.n - n
        cdef int copied = self.along(self.match.at, n)
        cdef int nearby = self.along(self.near.at, n)
        if copied:
            self.resume.at = self.match.at + <int32_t>n
            self.resume.length = self.match.length + copied
            self.resume.since = max(<int>n - copied - 1, 0)
        elif nearby:
            self.resume.at = self.near.at + <int32_t>n
            self.resume.length = self.near.length + nearby
            self.resume.since = <int>n - nearby
        elif self.resume.at != NONE:
            self.resume.at += <int32_t>n
            self.resume.since += <int>n
        if self.resume.at >= old:
            self.resume.at = NONE
        self.near.at = NONE
        if copied == n:
            self.match.at += <int32_t>n
            self.match.length += <int>n
        else:
            self.match.at = NONE
            self.match.length = 0

    cdef int along(self, int32_t at, Py_ssize_t n) noexcept nogil:
        """How many of the ``n`` tokens just committed equal those from ``at`` on."""
        cdef int i = 0
        if at == NONE:
            return 0
        while i < n and self.text[at + i] == self.text[self.n - n + i]:
            i += 1
        return i


cdef inline int with_token(int32_t* tokens, int n, int32_t token) noexcept nogil:
    """Append a token that is not among the ``n`` there; how many there are then."""
    cdef int i
    for i in range(n):
        if tokens[i] == token:
            return n
    tokens[n] = token
    return n + 1


cdef inline bint is_candidate(const Position* at, int32_t token) noexcept nogil:
    cdef int i
    for i in range(at.count):
        if at.candidates[i].token == token:
            return True
    return False


cdef inline void put(Candidate* c, int input, int cell) noexcept nogil:
    c.input[c.used] = <int8_t>input
    c.cell[c.used] = <int16_t>cell
    c.used += 1
