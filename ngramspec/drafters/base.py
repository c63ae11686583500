"""The interface that every drafter implements."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, Self

from ngramspec.draft import EMPTY_DRAFT, Draft, Evidence, EvidenceRequest, Float32, Int32

if TYPE_CHECKING:
    from ngramspec.drafters.tool_calls import ToolCalls


class DraftModel(Protocol):
    """A language model that drafts. It keeps the tokens that it has read in its cache.

    Attributes:
        room: most tokens that it can read; None: no limit.
        vocab: it can read only ids below this one; None: all.
    """

    room: int | None
    vocab: int | None

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

    def forward(self, tokens: Int32, last: int, most: int) -> tuple[Int32, Float32]:
        """Read tokens and return the distributions of the tokens that may follow.

        Args:
            tokens: int32 (n,), appended to those read before.
            last: number of final positions to return distributions for, 1..n.
            most: number of ids per position, limited to the vocabulary.

        Returns:
            (ids int32, log_probs float32), each (last, most), in descending order of probability.
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
                to a one-position forward; index 0 is unused. The draft then ends where expected
                tokens per cost are highest. None: up to gamma nodes. A drafter without estimates
                ignores it.
            tree: whether a tree may be returned instead of a chain.

        Returns:
            A ``Draft``, not an instance of a subclass, of at most ``gamma`` nodes. It is empty if
            nothing was found. Its arrays are plain NumPy arrays and stay valid after the next call.
            The target verifies a copy of them; ``observe`` gets this draft, or a copy of it if the
            drafter is one of several. A ``proposal`` must keep the promise of ``Proposal``.
        """

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        """Guess what follows the committed tokens and then ``drafted``, int32 (n,).

        A drafter thereby continues the draft of a source with a higher priority. The default drafts
        only where ``drafted`` is empty.
        """
        return EMPTY_DRAFT if len(drafted) else self.propose(gamma)

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        verified: int | None = None,
        evidence: Evidence | None = None,
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
    """Base of sessions that wrap another session, ``inner``. Every call is forwarded to it."""

    def __init__(self, inner: DraftSession) -> None:
        self.inner = inner

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        return self.inner.propose(gamma, cost, tree=tree)

    @property
    def wants_evidence(self) -> bool:
        return self.inner.wants_evidence

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        verified: int | None = None,
        evidence: Evidence | None = None,
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
    session: DraftSession,
    draft: Draft,
    accepted: Sequence[int],
    verified: int | None,
    evidence: Evidence | None,
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
    """A drafter whose copies, including pickled ones, keep its arguments and nothing learned.

    Attributes:
        learned: names of the attributes that ``forget`` sets.
        by_request: whether each sequence learns separately.
    """

    learned: tuple[str, ...] = ()
    by_request = False

    @abstractmethod
    def forget(self) -> None:
        """Reset what was learned. Not while sequences run."""

    def with_attributes(self, **attributes: Any) -> Self:
        """A copy with other values of some attributes, which shares what was learned."""
        other = copy.copy(self)
        vars(other).update(vars(self) | attributes)
        return other

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
