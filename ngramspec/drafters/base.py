"""The interface that every drafter implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ngramspec.draft import EMPTY_DRAFT, Draft, Evidence, EvidenceRequest, Float32, Int32


class DraftModel(Protocol):
    """A model that drafts: what it has read, and what it says comes next.

    Attributes:
        room: most tokens that it can read; None: any number.
    """

    room: int | None

    def forward(self, tokens: Int32, last: int, most: int) -> tuple[Int32, Float32]:
        """Read tokens, and say what may follow the last ones.

        Args:
            tokens: int32 (n,), behind those read before.
            last: behind how many of them, 1..n.
            most: how many ids of each; all there are, if those are fewer.

        Returns:
            (ids int32, log_probs float32), each (last, most), the most probable first.
        """

    def truncate(self, length: int) -> None:
        """Forget all but the first ``length`` tokens read."""


class DraftSession(ABC):
    """The drafting of one sequence. One thread at a time.

    The order of a step is propose, observe, extend. Any of them may raise any Exception: the step's
    draft is dropped, and a new session replaces this one. After four such faults in a row the rest
    of the generation runs without the drafter.
    """

    @abstractmethod
    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Guess what follows the committed tokens.

        Args:
            gamma: nodes at most, >= 0.
            cost: float32 (gamma + 2,), cost[n] of a forward of n positions in units of a
                one-position forward, index 0 unused: the draft ends where expected tokens per cost
                are highest. None: up to gamma nodes. A drafter without estimates ignores it.
            tree: whether a tree may be returned instead of a chain.

        Returns:
            A Draft itself, no subclass, of at most ``gamma`` nodes; the empty draft when
            nothing was found. Its arrays are plain NumPy ones and stay valid after the next call.
            The target verifies a copy of them; ``observe`` gets this draft, or under tiers a copy
            of it. If it has a ``proposal``, the session promises what ``Proposal`` says.
        """

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        """Guess what follows the committed tokens and then ``drafted``, int32 (n,).

        This lets a drafter continue the draft of a higher tier. The default drafts only where
        ``drafted`` is empty.
        """
        return EMPTY_DRAFT if len(drafted) else self.propose(gamma)

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        tested: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        """Learn which of a draft's nodes the target accepted; by default nothing.

        Args:
            draft: what propose returned, or the first nodes of it if fewer were verified, or a path
                of a tree, as a chain, if only that was.
            accepted: the accepted nodes' indices, in order.
            tested: how many nodes were tested (see Verdict); None: all up to the first rejected
                one.
            evidence: what ``Drafter.evidence`` asks for. Passed only to sessions of a drafter that
                asks, and then ``observe`` is called after every step whose evidence was wanted,
                with the empty draft where nothing was verified. None: the decoder has none (engines
                other than the package's own loop).
        """
        return None

    @abstractmethod
    def extend(self, tokens: Int32) -> None:
        """Append committed tokens, int32 (n,); legal without propose or observe before."""

    @property
    def wants_evidence(self) -> bool:
        """Whether the coming forward is to give what ``Drafter.evidence`` asks for.

        It is read after each ``propose``, of sessions of a drafter that asks. By default it is.
        """
        return True

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        """Begin a sampled request; called before the first propose.

        Args:
            temperature: of the request.
            seed: for the session's random choices, different for each call, row and session.
        """
        return None

    def begin_models(self, load: Callable[[Any], DraftModel]) -> None:
        """Take what opens the models of ``Drafter.assistants``; called before the first propose.

        Args:
            load: called with one of ``assistants``; returns its model, with nothing read.
        """
        return None

    def sizeof(self) -> int | None:
        """Bytes of the session's own structures; None: unknown."""
        return None

    def close(self) -> None:
        """End the sequence."""
        return None


class ForwardingSession(DraftSession):
    """Another session, to which everything is passed on: for sessions that change a part of it.

    Args:
        inner: that session.
    """

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
        tested: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        hand_over(self.inner, draft, accepted, tested, evidence)

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
    """How to draft, and what all its sequences share. Thread-safe.

    What only some drafters need (such as evidence from the target's forwards) is declared here, by
    a class attribute with a default, and comes through a session method with a default.

    Attributes:
        tiers: names of the sources of its drafts, 1 to 128 strings; Draft.source indexes them. They
            are read when a session starts.
        spec: the string that build_drafter makes an equal drafter from, or None.
        estimates: whether its drafts have confidence and end by ``cost``.
        assistants: drafters whose sessions run a model (ModelDrafter), itself among them.
        evidence: what its sessions want to know of every forward, see ``Evidence``; None: nothing,
            and then nothing of it is computed. Read when a session starts.
        branches: whether its trees, too, end by ``cost``, and take hardly longer to draft than its
            chains: then ``tree="auto"`` drafts trees.
    """

    tiers: tuple[str, ...] = ("drafter",)
    spec: str | None = None
    estimates: bool = False
    branches: bool = False
    evidence: EvidenceRequest | None = None
    stores: tuple[Any, ...] = ()
    assistants: tuple[Any, ...] = ()

    def with_stores(self, stores: Sequence[Any]) -> Drafter:
        """A drafter as this one, with other stores.

        Raises:
            ValueError: it takes none.
        """
        if not stores:
            return self
        raise ValueError(
            f"drafter {self.spec or type(self).__name__} takes no stores; 'auto' and other joins of"
            " copy, ngram and unigram do"
        )

    def learning(self, *, by_request: bool) -> Drafter:
        """A drafter as this one, whose sequences learn each for itself, or together.

        The default learns nothing that outlives a sequence, or decides for itself.
        """
        return self

    @abstractmethod
    def start(self, tokens: Int32) -> DraftSession:
        """Begin a sequence with its committed tokens so far, int32 (n,), n >= 0.

        A session gets only tokens of the target's vocabulary.
        """


def hand_over(
    session: DraftSession,
    draft: Draft,
    accepted: Sequence[int],
    tested: int | None,
    evidence: Evidence | None,
) -> None:
    """Call a session's ``observe``, with ``evidence`` only where there is any."""
    if evidence is None:
        session.observe(draft, accepted, tested)
    else:
        session.observe(draft, accepted, tested, evidence)
