"""The interface that every drafter implements, and the checks of what it returns.

Nothing that a drafter returns is trusted: before the target spends a forward on a draft, any fault
in it raises here, and the loop gets plain copies.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from ngramspec._native import sound_chain
from ngramspec.draft import EMPTY_DRAFT, Draft, EvidenceRequest, Float32, Int32, Nodes, Observed

if TYPE_CHECKING:
    from ngramspec.drafters.tool_calls import ToolCalls


class DraftModel(Protocol):
    """A language model that drafts. It keeps the tokens that it has read in its cache."""

    room: int | None  # most tokens that it can read; None: no limit
    vocab: int | None  # it can read only ids below this one; None: all

    @property
    def ahead(self) -> int | None:
        """Most tokens after the committed ones that it can predict; None: no limit."""

    @property
    def ready(self) -> bool:
        """Whether it knows what it needs of the committed text."""

    def cost(self, last: int) -> float:
        """Cost of a forward that returns ``last`` distributions, in the target's forwards."""

    def reading_cost(self, tokens: int) -> float:
        """Cost of catching up with ``tokens`` tokens of the text, in the target's forwards."""

    def commit(self, length: int) -> None:
        """Learn the number of committed tokens; called before the forwards of each draft."""

    def forward(self, tokens: Int32, last: int, top_k: int) -> tuple[Int32, Float32]:
        """Read tokens, int32 (n,), after those read before; return what may follow.

        These are ids int32 and log_probs float32, (last, top_k) each, by descending probability:
        the ``top_k`` most probable ids (or all of the vocabulary) at the ``last`` final positions.
        """

    def truncate(self, length: int) -> None:
        """Discard all but the first ``length`` tokens read."""


class DraftSession(ABC):
    """Drafts for one sequence. Not for several threads at once.

    The order of a step is propose, observe, extend. Any of them may raise any Exception: the step's
    draft is dropped, and a new session replaces this one. After four such faults without enough
    sound drafts in between, the rest of the generation runs without the drafter.
    """

    @abstractmethod
    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Guess what follows the committed tokens.

        It may be called again before ``observe`` and ``extend``; only the last draft is verified.

        Args:
            gamma: maximum number of draft nodes (num_speculative_tokens), >= 0.
            cost: float32 (gamma + 2,). ``cost[n]`` is the cost of a forward of n positions relative
                to a one-position forward, or what a step of such a forward must yield
                (``StepCosts.required_tokens``, which includes a margin); index 0 is unused. The
                draft then ends where expected tokens per cost are highest. None: up to gamma nodes.
                A drafter without estimates ignores it.
            tree: whether a tree may be returned instead of a chain.

        Returns:
            A ``Draft``, not an instance of a subclass, of at most ``gamma`` nodes. It is empty if
            nothing was found. Its arrays are plain NumPy arrays and stay valid after the next call.
            The target verifies a read-only copy of the draft, and ``observe`` gets that copy. A
            ``proposal`` must keep the promise of ``Proposal``.
        """

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        """Guess what follows the committed tokens and then ``drafted``, int32 (n,).

        A drafter thereby continues the draft of a source with a higher priority. The default drafts
        only where ``drafted`` is empty.
        """
        return EMPTY_DRAFT if len(drafted) else self.propose(gamma)

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        """Learn which of a draft's nodes the target accepted. The default does nothing.

        Args:
            draft: what ``propose`` returned, or its first nodes if fewer were verified, or one path
                of the tree as a chain if only that was verified.
            accepted: indices of the accepted nodes, in order.
            verified: number of verified nodes (see Verdict); None: up to the first rejected one,
                inclusive.
            evidence: what ``Drafter.evidence`` asks for. It is passed only to sessions of a drafter
                that asks. ``observe`` is then called after every step whose evidence was wanted,
                with the empty draft where nothing was verified. None: not available (engines other
                than the package's own loop).
        """
        return None

    @abstractmethod
    def extend(self, tokens: Int32) -> None:
        """Append committed tokens, int32 (n,); ``propose`` and ``observe`` need not come first."""

    @property
    def wants_evidence(self) -> bool:
        """Whether the next forward is to provide what ``Drafter.evidence`` asks for.

        Read after each ``propose`` if the drafter asks for evidence. The default is True.
        """
        return True

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        """Begin a sampled request; called before the first ``propose``.

        Args:
            temperature: the request's temperature.
            seed: seeds the session's random choices; different for each call, row and session.
        """
        return None

    def begin_models(self, load: Callable[[Any], DraftModel]) -> None:
        """Receive the loader of ``Drafter.assistants``; called before the first ``propose``.

        Args:
            load: takes one of ``assistants`` and returns its model, which has read nothing yet.
        """
        return None

    def sizeof(self) -> int | None:
        """Bytes of the session's own structures; None: not known."""
        return None

    def close(self) -> None:
        """End the sequence."""
        return None


class ForwardingSession(DraftSession):
    """Base of sessions that wrap another one, ``inner``, to which every call is forwarded."""

    def __init__(self, inner: DraftSession) -> None:
        self.inner = inner

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self.inner.propose(gamma, cost, tree=tree)

    @property
    def wants_evidence(self) -> bool:
        return self.inner.wants_evidence

    def observe(
        self, draft: Draft, accepted: Nodes, verified: int | None = None, evidence: Observed = None
    ) -> None:
        call_observe(self.inner, draft, accepted, verified, evidence)

    def extend(self, tokens: Int32) -> None:
        self.inner.extend(tokens)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        self.inner.begin_sampling(temperature, seed)

    def begin_models(self, load: Callable[[Any], DraftModel]) -> None:
        self.inner.begin_models(load)

    def sizeof(self) -> int | None:
        return self.inner.sizeof()

    def close(self) -> None:
        self.inner.close()


class Drafter(ABC):
    """The recipe for drafting, and what all its sequences share. Thread-safe.

    What only some drafters need, such as evidence from the target's forwards, is declared by a
    class attribute and delivered through a session method. Both have defaults.

    Attributes:
        source_names: names of its draft sources, 1 to 128 strings, which ``Draft.source`` indexes.
            Read when a session starts.
        spec: the string from which ``build_drafter`` makes an equal drafter, or None.
        estimates: whether its drafts have a confidence and end by ``cost``.
        branches: whether its trees also end by ``cost`` and take hardly longer to draft than its
            chains; ``tree="auto"`` then drafts trees.
        evidence: what its sessions need to know of every forward, see ``Evidence``; None: nothing,
            and nothing is computed for it. Read when a session starts.
        stores: corpora and namespaces that it drafts from.
        assistants: the drafters whose sessions run a model (ModelDrafter); may include itself.
    """

    source_names: tuple[str, ...] = ("drafter",)
    spec: str | None = None
    estimates: bool = False
    branches: bool = False
    evidence: EvidenceRequest | None = None
    stores: tuple[Any, ...] = ()
    assistants: tuple[Any, ...] = ()

    def with_stores(self, stores: Sequence[Any]) -> Drafter:
        """A copy of this drafter with other stores.

        Raises:
            ValueError: this kind of drafter has no stores.
        """
        if not stores:
            return self
        raise ValueError(
            f"drafter {self.spec or type(self).__name__} takes no stores; 'auto' and other joins of"
            " copy, ngram and unigram do"
        )

    def with_tools(self, tools: ToolCalls) -> Drafter:
        """A copy of this drafter that predicts calls of a request's tools.

        The default returns the drafter itself: it cannot weigh them against its other candidates.
        """
        return self

    def with_calibration(self, *, by_request: bool) -> Drafter:
        """A copy of this drafter whose sequences learn separately (by request) or together.

        The default returns the drafter itself: it learns nothing that outlives a sequence, or it
        makes this choice itself.
        """
        return self

    @abstractmethod
    def start(self, tokens: Int32) -> DraftSession:
        """Begin a sequence with its committed tokens so far, int32 (n,), n >= 0.

        A session is given only token ids of the target's vocabulary.
        """


def call_observe(
    session: DraftSession, draft: Draft, accepted: Nodes, verified: int | None, evidence: Observed
) -> None:
    """Call a session's ``observe``; pass ``evidence`` only if there is any."""
    if evidence is None:
        session.observe(draft, accepted, verified)
    else:
        session.observe(draft, accepted, verified, evidence)


def verified_count(draft: Draft, accepted: Sequence[int], verified: int | None) -> int:
    """The number of verified nodes of a chain, from the arguments of ``observe``."""
    return min(len(draft), len(accepted) + 1) if verified is None else verified


class LearningDrafter(Drafter):
    """A drafter whose copies, including pickled ones, keep its arguments and nothing learned."""

    learned: tuple[str, ...] = ()  # names of the attributes that ``forget`` sets
    by_request = False  # whether each sequence learns separately

    @abstractmethod
    def forget(self) -> None:
        """Reset what was learned. Not while sequences run."""

    def with_attributes(self, **attributes: Any) -> Self:
        """A copy with other values of some attributes, which shares what was learned."""
        other = copy.copy(self)
        vars(other).update(vars(self) | attributes)
        return other

    def of_sequence(self) -> Self:
        """What one sequence learns in: this drafter, or by request a copy, which knows nothing."""
        return copy.copy(self) if self.by_request else self

    def with_calibration(self, *, by_request: bool) -> Self:
        if by_request == self.by_request:
            return self
        other = copy.copy(self)
        other.by_request = by_request
        return other

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self.learned}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.forget()


INT32, INT8, FLOAT32 = np.dtype(np.int32), np.dtype(np.int8), np.dtype(np.float32)
UINT32 = np.dtype(np.uint32)
largest = np.maximum.reduce
ONE_BITS = int(np.float32(1.0).view(UINT32))  # bits of 1.0; floats in 0..1 have smaller ones
MAX_SOURCES = 128  # Draft.source is int8


def check_source_names(given: object) -> tuple[str, ...]:
    """Return a drafter's ``source_names`` as a tuple; a TypeError or ValueError if not 1 to 128."""
    if type(given) not in (tuple, list) or not all(type(name) is str for name in given):  # type: ignore[attr-defined]
        raise TypeError(f"a drafter's source_names must be a tuple of strings, got {given!r}")
    names: tuple[str, ...] = tuple(given)  # type: ignore[arg-type]
    if not 1 <= len(names) <= MAX_SOURCES:
        raise ValueError(f"a drafter must have 1..{MAX_SOURCES} source names, got {len(names)}")
    return names


def check_evidence(request: object) -> EvidenceRequest | None:
    """Return a drafter's ``evidence``, or raise a TypeError."""
    if request is not None and type(request) is not EvidenceRequest:
        raise TypeError(f"a drafter's evidence must be an EvidenceRequest or None, got {request!r}")
    return request


def check_draft(
    draft: object, limit: int, vocab: int, *, tree: bool = False, sources: int = MAX_SOURCES
) -> Draft:
    """Return a copy of ``draft`` if the target can verify it, as a chain unless ``tree``.

    The arrays are copied before they are checked, so nothing that the drafter later does to them,
    even in another thread, has an effect. Each node's proposal is divided by its sum, which removes
    the rounding error of the sum. The draft may have ``limit`` tokens and name ``sources`` sources.
    Fields that are not arrays may raise anything.
    """
    if type(draft) is not Draft:  # a subclass could override anything
        raise TypeError(f"propose must return a Draft and no subclass, got {type(draft).__name__}")
    n = len(draft.tokens) if type(draft.tokens) is np.ndarray and draft.tokens.ndim else 0
    if n > limit:
        raise ValueError(f"a draft must have at most gamma = {limit} tokens, got {n}")
    tokens = copied_array("tokens", draft.tokens, INT32, n)
    if not n:
        return EMPTY_DRAFT  # other fields are ignored
    check_ids("draft tokens", tokens, vocab)
    parents = confidence = proposal = source = None
    if draft.parents is not None:
        if not tree:
            raise ValueError("draft must be a chain, got one with parents")
        parents = copied_array("parents", draft.parents, INT32, n)
        _check_tree(tokens, parents)
    if draft.source is not None:
        source = copied_array("source", draft.source, INT8, n)
        if max(source.tobytes()) >= sources:  # as unsigned bytes, negative ones are above 127
            bad = source[(source < 0) | (source >= sources)][0]
            raise ValueError(f"source must lie in 0..{sources - 1}, got {bad}")
    if draft.confidence is not None:
        confidence = copied_array("confidence", draft.confidence, FLOAT32, n)
        if largest(confidence.view(UINT32)) > ONE_BITS:  # also true for NaN and negative numbers
            fits = (confidence >= 0) & (confidence <= 1)
            if not fits.all():  # -0.0 fits
                raise ValueError(f"confidence must lie in 0..1, got {confidence[~fits][0]}")
    if draft.proposal is not None:
        from ngramspec.drafters.stochastic import checked_proposal  # most drafts have none

        proposal = checked_proposal(tokens, parents, draft.proposal, vocab)
    return Draft(tokens, parents, confidence, proposal, source)


def is_plain_chain(draft: object, limit: int, vocab: int) -> bool:
    """Whether this is a valid deterministic chain of at most ``limit`` tokens; not its sources."""
    if type(draft) is not Draft or draft.parents is not None or draft.proposal is not None:
        return False
    return sound_chain(draft.tokens, draft.confidence, limit, vocab)


def valid_prefix(draft: object, limit: int, vocab: int, *, tree: bool, sources: int) -> Draft:
    """The part that can be verified of a draft that failed ``check_draft`` with these arguments.

    Only stochastic drafts have one: their longest valid prefix. Whether a node is invalid may
    depend on the tokens sampled before it. If those were dropped with it, sampled tokens would
    decide whether they are verified, which would bias the output. Otherwise it is empty.
    """
    sound, low, high = EMPTY_DRAFT, 0, limit
    while type(draft) is Draft and draft.proposal is not None and low < high:
        middle = (low + high + 1) // 2
        try:
            sound = check_draft(draft.first(middle), middle, vocab, tree=tree, sources=sources)
            low = middle
        except Exception:  # fields that are not arrays may raise anything
            high = middle - 1
    return sound


def copied_array(name: str, array: object, dtype: np.dtype[Any], size: int) -> NDArray[Any]:
    """A read-only copy of ``array``, if it is a plain one-dimensional array of this kind."""
    if type(array) is not np.ndarray or array.dtype != dtype or array.ndim != 1:
        got = f"{array.dtype} {array.shape}" if type(array) is np.ndarray else type(array)
        raise TypeError(f"draft {name} must be an {dtype} array of one dimension, got {got}")
    if len(array) != size:
        raise ValueError(f"{name} must have {size} entries, got {len(array)}")
    copied = array.copy()
    copied.setflags(write=False)
    return copied


def check_ids(name: str, ids: Int32, vocab: int) -> None:
    """Raise a ValueError, which names the argument, unless all ids lie in the vocabulary."""
    if largest(ids.view(UINT32)) >= vocab:  # as unsigned ints, negative ones are above 2^31
        bad = ids[(ids < 0) | (ids >= vocab)][0]
        raise ValueError(f"{name} must lie in 0..{vocab - 1}, got {bad}")


def _check_tree(tokens: Int32, parents: Int32) -> None:
    wrong = (parents < -1) | (parents >= np.arange(len(parents)))
    if wrong.any():
        node = int(wrong.argmax())
        raise ValueError(f"parents[{node}] must lie in -1..{node - 1}, got {parents[node]}")
    edges = np.sort((parents.astype(np.int64) << 32) | tokens)
    if (edges[1:] == edges[:-1]).any():
        token = int(edges[:-1][edges[1:] == edges[:-1]][0]) & 0x7FFFFFFF
        raise ValueError(f"children of one node must have different tokens, got {token} twice")
