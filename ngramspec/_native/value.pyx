"""Drafting by value: copies, resumed copies and n-gram counts under one calibrated estimate.

At every position the candidates (candidates.pyx) are: the token after the longest known match; the
leading continuations of the last one to three tokens and of the one before the last; the token
where the last copy would continue after a substituted one; the one after the best match around
there; and the sequence's most frequent token if there is no other. Each gets P(it is next) from the
calibration (calibration.pyx). The search (search.pyx) makes a chain or a tree of them, which ends
where the expected tokens per cost are highest.

Invariant: drafts depend only on the committed text, the calibration and the outcome of earlier
drafts. Costs: a committed token four counts, a drafted position four look-ups and at most
``MOST_CANDIDATES`` estimates (in a chain nine); finding places is bounded (committed.pyx).
Memory: 4 bytes per token, 32 to 85 per context, 2.3 kB per node of the largest draft. One thread
at a time: a second one gets a RuntimeError while an operation runs without the GIL.
"""

from libc.stdint cimport int8_t, int32_t

cimport numpy as cnp

from ngramspec._native.calibration cimport Calibration
from ngramspec._native.candidates cimport Estimator
from ngramspec._native.committed cimport CommittedText
from ngramspec._native.common cimport (
    MAX_DRAFT, MAX_TOKENS, NONE, array_floats, array_tokens, check_ids, first_negative, gamma_of,
    raise_negative, start_of, token_view,
)
from ngramspec._native.frontier cimport Node, ranked
from ngramspec._native.head cimport HeadRows
from ngramspec._native.search cimport DraftSearch
from ngramspec._native.store_reader cimport Familiar, StoreReader
from ngramspec._native.store_source cimport StoreSource
from ngramspec._native.top_tokens cimport TopTokens

cnp.import_array()

cdef enum:
    FEW = 64            # tokens committed without releasing the GIL
    REHEARSED = 16      # tokens per chain that is drafted along known text


cdef class ValueEngine:
    """The structures of one sequence, and drafting with them.

    Args:
        calibration: shared by all sequences of a drafter.
        copies: whether to copy from the committed text.
        counts: whether to draft from n-gram counts.
        falls_back: whether to draft the most frequent token if there is no other candidate.
        min_match: shortest match to copy from, in tokens, >= 1.
        store: a store to draft from in addition to the committed text, or None.
        recycles: whether to draft the target's top-k candidates, see ``recycle``.
        headed: whether to draft a head's tokens, see ``read_head``.
        familiar: what earlier requests of the same conversation learned about the store, or None.
    """

    cdef readonly Calibration calibration
    cdef CommittedText committed
    cdef Estimator estimator
    cdef DraftSearch search
    cdef StoreReader store      # or None
    cdef readonly TopTokens top_tokens     # or None
    cdef HeadRows head          # or None
    cdef bint busy              # an operation is running without the GIL

    def __cinit__(
        self, Calibration calibration not None, bint copies=True, bint counts=True,
        bint falls_back=True, int min_match=2, StoreSource store=None, bint recycles=False,
        bint headed=False, Familiar familiar=None,
    ):
        if min_match < 1:
            raise ValueError(f"min_match must be >= 1, got {min_match}")
        self.calibration = calibration
        self.committed = CommittedText(min_match if copies else 0)
        self.store = None if store is None else StoreReader(store, familiar)
        self.top_tokens = TopTokens() if recycles else None
        self.head = HeadRows() if headed else None
        self.estimator = Estimator(
            calibration, self.committed, counts, falls_back, self.store, self.top_tokens, self.head
        )
        self.search = DraftSearch(self.committed, self.estimator)

    def __len__(self):
        """Number of committed tokens."""
        return self.committed.text.n

    def draft(self, Py_ssize_t gamma, cost=None):
        """Draft a chain of at most ``gamma`` tokens.

        Args:
            gamma: maximum number of tokens, 0..65536.
            cost: float32 (gamma + 2,) or longer; cost[n] is the cost of a forward of n positions.
                None: the draft ends at gamma, or where a path is too improbable.

        Returns:
            (tokens int32, confidence float32, source int8), each (n,): source is 0 for copy, 1
            for a resumed copy, 2 for n-gram counts, 3 for the most frequent token, 4 for the store,
            5 for the target's top-k candidates, 6 for the head.
        """
        return self.drafted(self.propose(gamma, cost, False))

    def draft_tree(self, Py_ssize_t gamma, cost=None):
        """Draft a tree of at most ``gamma`` tokens, in order of reach.

        Args:
            gamma, cost: as in ``draft``.

        Returns:
            (tokens int32, parents int32, confidence float32, source int8), each (n,): parents[i]
            is -1 for the last committed token, else below i.
        """
        cdef cnp.npy_intp i, n = self.propose(gamma, cost, True)
        tokens, confidence, source = self.drafted(n)
        parents = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT32)
        for i in range(n):
            (<int32_t*>cnp.PyArray_DATA(parents))[i] = ranked(
                &self.search.frontier, <int>i
            ).parent
        return tokens, parents, confidence, source

    def extend(self, tokens):
        """Append committed tokens, int32 (n,), and learn which of the last candidates were right.

        Raises:
            TypeError, ValueError: not an int32 array, or a negative id; nothing was appended.
            MemoryError: the tokens before the failure were appended; the engine stays valid.
        """
        cdef const int32_t[::1] view  # holds the array while the GIL is released
        cdef Py_ssize_t count = 0, old
        cdef const int32_t* new = array_tokens(tokens, &count)
        cdef int failed
        if new == NULL or count >= FEW:
            view = token_view(tokens)
            new, count = start_of(view), view.shape[0]
        if count > MAX_TOKENS - self.committed.text.n:
            raise OverflowError(f"a value engine holds at most {MAX_TOKENS} tokens")
        check_ids(new, count)
        self.idle()
        if count:
            self.search.learn(new, count)
        if self.head is not None:
            self.head.n = self.head.fixed = 0
        if count == 0:
            return
        old = self.committed.text.n
        if count < FEW:
            failed = self.committed.append(new, count)
        else:
            self.busy = True
            with nogil:
                failed = self.committed.append(new, count)
            self.busy = False
        self.committed.follow(self.committed.text.n - old)
        if self.store is not None:
            self.store.follow(self.committed.text.tokens + old, self.committed.text.n - old)
        if failed:
            raise MemoryError(f"value engine at {self.committed.text.n} tokens")

    def rehearse(self, tokens):
        """Append committed tokens, int32 (n,), and learn from chains drafted along them.

        The tokens are treated as if they were generated: a chain of at most ``REHEARSED`` tokens
        is drafted, its matching tokens and one more are committed, and so on. Look-ups in a store
        are not counted, and failed ones do not make later look-ups less frequent.

        Raises:
            The same as ``extend``.
        """
        cdef const int32_t[::1] view = token_view(tokens)
        cdef Py_ssize_t at = 0, n = view.shape[0], drafted, k
        while at < n:
            drafted = self.propose(min(<Py_ssize_t>REHEARSED, n - at - 1), None, False)
            k = 0
            while k < drafted and ranked(&self.search.frontier, <int>k).token == view[at + k]:
                k += 1
            self.extend(tokens[at : at + k + 1])
            at += k + 1
        if self.store is not None:
            self.store.count_anew()

    def recycle(
        self, tokens, parents, const int32_t[:, ::1] ids, const float[:, ::1] log_probs,
        accepted=(),
    ):
        """Keep the target's most probable tokens after the last token and the draft tokens.

        Of rows after the same tokens the last one is kept, but rows of the text take precedence.

        Args:
            tokens: int32 (m,), ids >= 0: the token that each row follows.
            parents: int32 (m,), index of the token before each, below its own; -1: the last token
                of the text.
            ids: int32 (m, k), >= 0, by descending probability; 8 are kept.
            log_probs: float32 (m, k), the natural logarithms of their probabilities.
            accepted: indices of the rows whose tokens were accepted, in order.

        Raises:
            TypeError, ValueError, IndexError: not such arrays; nothing was kept.
            MemoryError: the rows before the failure are kept; the engine stays valid.
        """
        cdef const int32_t[::1] view = token_view(tokens)
        cdef const int32_t[::1] above = token_view(parents, "parents")
        cdef Py_ssize_t i, bad, m = view.shape[0], n = self.committed.text.n
        cdef int k = columns_of(ids, log_probs, m)
        cdef int32_t last = self.committed.text.tokens[n - 2] if n > 1 else NONE
        cdef int32_t before
        cdef int failed = 0
        if above.shape[0] != m:
            raise ValueError(f"parents must have {m} entries, got {above.shape[0]}")
        if self.top_tokens is None or m == 0 or k == 0:
            return
        for i in range(m):
            bad = first_negative(&ids[i, 0], k)
            if view[i] < 0 or bad != NONE:
                raise_negative(view[i] if view[i] < 0 else ids[i, bad], i)
            if not -1 <= above[i] < i:
                raise ValueError(f"parents[{i}] must be in -1..{i - 1}, got {above[i]}")
        kept = [int(each) for each in accepted]
        for each in kept:
            if not 0 <= each < m:
                raise IndexError(f"accepted must be indices below {m}, got {each}")
        self.idle()
        for depth, i in enumerate([*range(m), *kept], -m):
            before = last if above[i] == NONE else view[above[i]]
            failed |= self.top_tokens.put(
                before, view[i], &ids[i, 0], &log_probs[i, 0], k, <int32_t>(n + max(depth, 0))
            )
            if depth >= 0 and not failed:
                self.top_tokens.put_latest(view[i])
        if failed:
            raise MemoryError("the target's top-k candidates")

    def read_head(
        self, before, const int32_t[:, ::1] ids, const float[:, ::1] log_probs, int depth=0
    ):
        """Add a drafting head's rows for the next draft, in place of those from ``depth`` on.

        Args:
            before: int32 (m,), the draft token before each row; that of depth 0 is ignored.
            ids: int32 (m, k), >= 0, by descending probability; 8 are kept.
            log_probs: float32 (m, k), the natural logarithms of their probabilities.
            depth: number of draft tokens before the first of the rows, at most the number of rows.

        Raises:
            TypeError, ValueError: not such arrays, or no head; nothing was changed.
            MemoryError: the rows before the failure were added.
        """
        cdef const int32_t[::1] view = token_view(before, "before")
        cdef Py_ssize_t i, bad, m = view.shape[0]
        cdef int k
        if self.head is None or not self.head.fixed <= depth <= self.head.n:
            raise ValueError(f"depth must be the number of a row, got {depth}")
        k = columns_of(ids, log_probs, m)
        if k == 0 or m > MAX_DRAFT:
            raise ValueError(f"ids must have 1 column or more and {MAX_DRAFT} rows or fewer")
        for i in range(m):
            bad = first_negative(&ids[i, 0], k)
            if bad != NONE or (view[i] < 0 and depth + i > 0):
                raise_negative(ids[i, bad] if bad != NONE else view[i], i)
        self.idle()
        self.head.n = depth
        for i in range(m):
            if self.head.add(
                view[i] if depth + i > 0 else NONE, &ids[i, 0], &log_probs[i, 0], k
            ) < 0:
                raise MemoryError("the head's rows")

    def fix(self, tokens, const float[::1] shares):
        """Fix the tokens of the next chain's first positions, at which the head has rows.

        Args:
            tokens: int32 (n,), those before any fixed earlier included.
            shares: float32 (n,), P(accepted) of each.
        """
        cdef const int32_t[::1] view = token_view(tokens)
        cdef Py_ssize_t i, n = view.shape[0]
        check_ids(start_of(view), n)
        if self.head is None or not self.head.fixed <= n <= self.head.n or shares.shape[0] != n:
            raise ValueError(f"there must be a row and a share for each token, got {n} tokens")
        self.idle()
        for i in range(n):
            self.head.rows[i].fixed, self.head.rows[i].share = view[i], shares[i]
        self.head.fixed = <int>n

    def sizeof(self):
        """Bytes allocated, without the shared calibration."""
        parts = (self.committed, self.search, self.store, self.top_tokens, self.head)
        sizes = [part.sizeof() for part in parts if part is not None]
        return sizeof(ValueEngine) + sizeof(Estimator) + sum(sizes)

    def store_counts(self):
        """(look-ups in the store, look-ups of which a place continued like the text)."""
        if self.store is None:
            return 0, 0
        return self.store.look_ups, self.store.hits

    def credit_store(self, int n):
        """Tell the store that ``n`` tokens that it gave to the last draft were accepted."""
        if self.store is not None:
            self.store.credit(n)

    def check_integrity(self):
        """Raise an AssertionError if an invariant is broken."""
        self.idle()
        for part in (self.committed, self.store, self.top_tokens, self.head):
            if part is not None:
                part.check_integrity()

    cdef int idle(self) except -1:
        if self.busy:
            raise RuntimeError("this value engine is being used by another thread")
        return 0

    cdef cnp.npy_intp propose(self, Py_ssize_t gamma, cost, bint tree) except -1:
        """Draft into the search's frontier; return the number of nodes worth verifying."""
        cdef const float* costs = NULL  # holds no reference: only for reading under the GIL
        cdef Py_ssize_t n = 0
        cdef int most = gamma_of(gamma)
        if cost is not None:
            costs = array_floats(cost, &n)
            if costs == NULL:
                what = getattr(cost, "dtype", type(cost).__name__)
                raise TypeError(
                    f"cost must be a contiguous one-dimensional float32 array, got {what}"
                )
            if n < most + 2:
                raise ValueError(f"cost must have {most + 2} entries, got {n}")
        self.idle()
        if self.search.prepare(most, tree) < 0:
            raise MemoryError(f"a draft of {most} tokens")
        return self.search.run(costs)

    cdef object drafted(self, cnp.npy_intp n):
        """The first ``n`` nodes: tokens, confidence, source."""
        cdef cnp.npy_intp i
        cdef const Node* node
        tokens = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT32)
        confidence = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_FLOAT32)
        source = cnp.PyArray_SimpleNew(1, &n, cnp.NPY_INT8)
        for i in range(n):
            node = ranked(&self.search.frontier, <int>i)
            (<int32_t*>cnp.PyArray_DATA(tokens))[i] = node.token
            (<float*>cnp.PyArray_DATA(confidence))[i] = node.p
            (<int8_t*>cnp.PyArray_DATA(source))[i] = <int8_t>node.source
        return tokens, confidence, source


cdef int columns_of(
    const int32_t[:, ::1] ids, const float[:, ::1] log_probs, Py_ssize_t rows
) except -1:
    """Number of columns of both, or a ValueError unless they have ``rows`` rows of one length."""
    if ids.shape[0] != rows or log_probs.shape[0] != rows or ids.shape[1] != log_probs.shape[1]:
        raise ValueError(f"ids and log_probs must have {rows} rows of one length")
    return <int>min(ids.shape[1], MAX_DRAFT)
