"""Drafting by value: copying, resumed copies and n-gram counts under one calibrated estimate.

At every position the candidates are the token that follows the longest match, the one that follows
where the last copy was left (past a substituted token), and the most frequent continuations of the
last one to three tokens. Each gets P(it is next) from the calibration; the best one is drafted and
the next position builds on it. The draft ends where the expected tokens per cost are highest:
Theorem 3.8 of Leviathan et al. 2023 with a measured cost and a probability per position.

Bounded work: a position costs at most three context look-ups and four candidates, whatever the
text's length. One thread at a time.
"""

from libc.stdint cimport int8_t, int32_t
from libc.stdlib cimport free

import numpy as np

from ngramspec._native.common cimport NONE, reserve, token_view
from ngramspec._native.ranks cimport Context, ranks_find
from ngramspec._native.xxh64 cimport xxh64

cdef enum:
    ORDERS = 3              # contexts of 1..3 tokens
    MIN_MATCH = 2
    LOOKAHEAD = 12          # positions looked at beyond the best end so far
    COPY_CELLS = 147
    RESUME_CELLS = 267
    SESSION_CELLS = 411
    FROM_COPY = 0
    FROM_RESUME = 1
    FROM_NGRAM = 2

cdef float HOPELESS = 0.01  # probability of a draft's reaching a position, below which it ends
cdef float MOOD_RATE = 0.15


cdef inline int length_bucket(int n) noexcept nogil:
    """0..6 as they are, then up to 8, 12, 20, 40, and more: 0..11."""
    if n <= 6:
        return n
    return 7 if n <= 8 else 8 if n <= 12 else 9 if n <= 20 else 10 if n <= 40 else 11


cdef inline int count_bucket(int n) noexcept nogil:
    """0..3 as they are, then up to 5, 9, and more: 0..6."""
    return n if n <= 3 else 4 if n <= 5 else 5 if n <= 9 else 6


cdef class ValueEngine:
    """One sequence's structures, and the drafting over them.

    Args:
        calibration: shared by all sequences of a drafter.
    """

    def __cinit__(self, Calibration calibration not None):
        self.calibration = calibration
        self.copy = CopyIndex()
        self.table = NGramTable(ORDERS + 1)
        self.match.at = self.resume.at = NONE
        self.mood = 0.5

    def __dealloc__(self):
        free(self.nodes)

    def draft(self, int gamma, const float[::1] cost=None):
        """Draft at most ``gamma`` tokens.

        Args:
            gamma: >= 0.
            cost: float32 (gamma + 2,), cost[n] of a forward of n positions; None: no limit but
                gamma and hopelessness.

        Returns:
            (tokens int32, confidence float32, source int8), each (n,): source is 0 for copy, 1
            for a resumed copy, 2 for n-gram counts.
        """
        cdef int n, i
        if gamma < 0:
            raise ValueError(f"gamma must be >= 0, got {gamma}")
        if cost is not None and cost.shape[0] < gamma + 2:
            raise ValueError(f"cost must have {gamma + 2} entries, got {cost.shape[0]}")
        if reserve(<void**>&self.nodes, &self.node_cap, max(gamma, 1), sizeof(Node)) < 0:
            raise MemoryError(f"a draft of {gamma} tokens")
        tokens = np.empty(max(gamma, 1), np.int32)
        confidence = np.empty(max(gamma, 1), np.float32)
        cdef int32_t[::1] out = tokens
        cdef float[::1] p = confidence
        n = self.fill(gamma, NULL if cost is None else &cost[0], &out[0], &p[0])
        source = np.empty(n, np.int8)
        cdef int8_t[::1] kinds = source
        for i in range(n):
            kinds[i] = <int8_t>self.nodes[i].kind
        return tokens[:n], confidence[:n], source

    def extend(self, tokens):
        """Append committed tokens, int32 (n,), and learn how the last draft's candidates did."""
        cdef const int32_t[::1] view = token_view(tokens)
        if view.shape[0] == 0:
            return
        self.learn(&view[0], view.shape[0])
        self.copy.extend(tokens)
        self.table.extend(tokens)

    def sizeof(self):
        """Bytes allocated, without the shared calibration."""
        own = sizeof(ValueEngine) + self.node_cap * sizeof(Node)
        return own + self.copy.sizeof() + self.table.sizeof()

    cdef int32_t text_at(self, Py_ssize_t at, const int32_t* drafted) noexcept nogil:
        return self.copy.text[at] if at < self.copy.n else drafted[at - self.copy.n]

    cdef int fill(self, int gamma, const float* cost, int32_t* tokens, float* p) noexcept nogil:
        """Draft into ``tokens`` and ``p``; the number of tokens worth verifying."""
        cdef int32_t context[ORDERS]
        cdef int32_t s = self.copy.prefixes[self.copy.n].link
        cdef int n = self.table.tail_n, j, best = 0, length, copied, resumed
        cdef float reach = 1, expected = 1, value, highest = 0
        cdef Node* node
        cdef bint along
        for j in range(n):
            context[j] = self.table.tail[j]
        self.match.length = 0 if s == NONE else self.copy.length(s)
        self.match.at = NONE
        if self.match.length >= MIN_MATCH:
            self.match.at = self.copy.occurrence(s, 1)
        along = self.match.at != NONE
        length = self.match.length
        if cost != NULL:
            highest = 1 / cost[1]
        self.node_n = 0
        for j in range(gamma if gamma > 0 else 1):
            copied = self.text_at(self.match.at + j, tokens) if along else NONE
            resumed = NONE
            if self.resume.at != NONE and self.resume.at + j < self.copy.n:
                resumed = self.copy.text[self.resume.at + j]
            node = &self.nodes[j]
            if not self.candidates(node, context, n, copied, resumed, length, self.since + j):
                break
            self.node_n = j + 1
            tokens[j] = node.candidates[node.chosen].token
            p[j] = node.candidates[node.chosen].p
            reach *= p[j]
            expected += reach
            if along and tokens[j] != copied:
                along = False
                length = 0
            elif length:
                length += 1
            if n < ORDERS:
                context[n] = tokens[j]
                n += 1
            else:
                context[0], context[1], context[2] = context[1], context[2], tokens[j]
            if j < gamma:
                value = 0 if cost == NULL else expected / cost[j + 2]
                if cost == NULL or value >= highest:
                    highest = value
                    best = j + 1
            if reach < HOPELESS or j + 1 >= best + LOOKAHEAD:
                break
        return best

    cdef int candidates(
        self, Node* node, const int32_t* context, int n, int copied, int resumed, int length,
        int since,
    ) noexcept nogil:
        """Find a position's candidates and choose the most probable; their number."""
        cdef Context* known[ORDERS]
        cdef Context* c
        cdef Candidate* each
        cdef Py_ssize_t slot
        cdef int orders = 0, count = 0, m, i, bucket, mood
        cdef int32_t token, e, times
        cdef int32_t tokens[CANDIDATES]
        for m in range(1, n + 1):
            slot = self.table.find(xxh64(context + n - m, m, m + 1))
            if self.table.slots[slot].total == 0:
                break
            known[orders] = &self.table.slots[slot]
            orders += 1
        if copied != NONE:
            tokens[0] = copied
            count = 1
        for m in range(orders - 1, -1, -1):
            token = known[m].token
            if count < CANDIDATES - 1 and not among(tokens, count, token):
                tokens[count] = token
                count += 1
        if resumed != NONE and not among(tokens, count, resumed):
            tokens[count] = resumed
            count += 1
        bucket = length_bucket(max(length, orders))
        mood = <int>(5 * self.mood)
        mood = min(mood, 4)
        node.count = count
        node.chosen = 0
        for i in range(count):
            token = tokens[i]
            each = &node.candidates[i]
            each.token = token
            each.used = 0
            each.set = 3 * bucket
            for m in range(orders):
                c = known[m]
                if c.top == NONE:
                    times = c.total if c.token == token else 0
                elif c.token == token:
                    times = self.table.ranks.buckets[c.top].count
                else:
                    e = ranks_find(&self.table.ranks, c.key, token)
                    times = 0
                    if e != NONE:
                        times = self.table.ranks.buckets[self.table.ranks.entries[e].bucket].count
                put(each, m, (m * 7 + count_bucket(times)) * 7 + count_bucket(c.total - times))
            if copied != NONE:
                put(each, ORDERS, COPY_CELLS + 2 * (5 * bucket + mood) + (token == copied))
            if resumed != NONE:
                put(
                    each, ORDERS + 1, RESUME_CELLS + (token == resumed)
                    + 2 * (12 * min(since, 5) + length_bucket(self.resume.length)),
                )
                each.set += 1 if token == resumed else 2
            put(each, ORDERS + 2, SESSION_CELLS + 12 * mood + bucket)
            self.calibration.mix(each)
            if each.p > node.candidates[node.chosen].p:
                node.chosen = i
        if count:
            token = tokens[node.chosen]
            node.kind = (
                FROM_COPY if token == copied else FROM_RESUME if token == resumed else FROM_NGRAM
            )
        node.copying = copied != NONE and tokens[node.chosen] == copied
        return count

    cdef void learn(self, const int32_t* tokens, Py_ssize_t n) noexcept nogil:
        """Compare the last proposal with what was committed, as far as they agree."""
        cdef int j, i, right = 0, followed = 0
        cdef Node* node
        cdef Candidate* chosen
        cdef bint agrees = True
        for j in range(<int>min(n, <Py_ssize_t>self.node_n)):
            node = &self.nodes[j]
            chosen = &node.candidates[node.chosen]
            agrees = chosen.token == tokens[j]
            for i in range(node.count):
                self.calibration.learn(&node.candidates[i], node.candidates[i].token == tokens[j])
            self.mood += MOOD_RATE * (<float>agrees - self.mood)
            if not agrees:
                break
            right += 1
            followed += node.copying
        if self.match.at != NONE and right >= 1 and followed == right:
            self.resume.at = <int32_t>(self.match.at + n)
            self.resume.length = self.match.length + right
            self.since = 0
        elif self.resume.at != NONE:
            self.resume.at += <int32_t>n
            self.since += <int>n
        if self.resume.at >= self.copy.n:
            self.resume.at = NONE
        self.node_n = 0
        self.match.at = NONE


cdef inline bint among(const int32_t* tokens, int n, int32_t token) noexcept nogil:
    cdef int i
    for i in range(n):
        if tokens[i] == token:
            return True
    return False


cdef inline void put(Candidate* c, int input, int cell) noexcept nogil:
    c.input[c.used] = input
    c.cell[c.used] = cell
    c.used += 1
