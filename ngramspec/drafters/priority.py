"""Several drafters in order of priority, as one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from ngramspec.draft import EMPTY_DRAFT, NO_TOKENS, Draft, Evidence, Float32, Int8, Int32, joined
from ngramspec.drafters.base import Drafter, DraftModel, DraftSession, verified_count
from ngramspec.drafters.prefix_tree import pack, path_along
from ngramspec.drafters.validation import (
    check_draft,
    check_evidence,
    check_source_names,
    valid_prefix,
)

ANY_VOCAB = 1 << 31  # as vocabulary size: only the joined draft is checked against the real one


class PrioritySession(DraftSession):
    """One session per drafter, in order of priority.

    When a drafter fails after another one's tokens, only its own part is lost, and the step's
    ``extend`` raises its error. If the whole draft were lost, tokens sampled by an earlier drafter
    would decide whether they are verified, which would bias the output.
    """

    def __init__(self, drafter: PriorityDrafter, sessions: list[DraftSession]) -> None:
        self.drafter, self.sessions = drafter, sessions
        self.parts: list[tuple[int, Draft]] = []  # (session, its part) of the last draft
        self.failed: Exception | None = None  # a drafter's error in this step

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """Draft in order of priority; a tree merges that chain with each drafter's own tree."""
        chain = self.propose_after(NO_TOKENS, gamma)
        if not tree:
            return chain
        trees = enumerate(session.propose(gamma, tree=True) for session in self.sessions)
        self.parts = [(which, part) for which, part in trees if len(part)]
        own = [
            Draft(part.tokens, part.parents, None, None, self._source(which, part))
            for which, part in self.parts
        ]
        return pack([chain, *own], gamma)

    @property
    def wants_evidence(self) -> bool:
        return any(self.sessions[which].wants_evidence for which in self.drafter.askers)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        self.parts, self.failed = [], None
        so_far, room = drafted, gamma
        for which in range(len(self.sessions)):
            if room <= 0 or self.failed is not None:
                break
            part = self._part(which, so_far, room)
            if len(part):
                self.parts.append((which, part))
                so_far = np.concatenate((so_far, part.tokens)) if len(so_far) else part.tokens
                room -= len(part)
        if self.failed is not None and not self.parts:
            raise self.failed
        if not self.parts:
            return EMPTY_DRAFT
        source = np.concatenate([self._source(*each) for each in self.parts])
        proposal = joined([part for _, part in self.parts])
        return Draft(so_far[len(drafted) :], proposal=proposal, source=source)

    def _part(self, which: int, so_far: Int32, room: int) -> Draft:
        """A drafter's draft after ``so_far``, int32 (n,), up to its first invalid node."""
        part, sources = EMPTY_DRAFT, self.drafter.counts[which]
        try:
            part = self.sessions[which].propose_after(so_far, room)
            return check_draft(part, room, ANY_VOCAB, sources=sources)
        except Exception as error:
            self.failed = error
        return valid_prefix(part, room, ANY_VOCAB, tree=False, sources=sources)

    def _source(self, which: int, part: Draft) -> Int8:
        inner = np.zeros(len(part), np.int8) if part.source is None else part.source
        return inner + np.int8(sum(self.drafter.counts[:which]))

    def observe(
        self,
        draft: Draft,
        accepted: Sequence[int],
        verified: int | None = None,
        evidence: Evidence | None = None,
    ) -> None:
        if draft.parents is not None:
            tokens = draft.tokens[list(accepted)].tolist()
            for which, part in self.parts:  # each has its own tree
                self.sessions[which].observe(part, path_along(part, tokens))
        else:
            self._observe_chain(len(accepted), verified_count(draft, accepted, verified))
        self.parts = []
        if evidence is not None:
            for which in self.drafter.askers:
                self.sessions[which].observe(EMPTY_DRAFT, (), 0, evidence)

    def _observe_chain(self, accepted: int, judged: int) -> None:
        """Tell each drafter how much of its part was verified and accepted."""
        begin = 0
        for which, part in self.parts:
            mine = min(max(judged - begin, 0), len(part))
            if mine:
                taken = min(max(accepted - begin, 0), len(part))
                self.sessions[which].observe(part, range(taken), mine)
            begin += len(part)

    def extend(self, tokens: Int32) -> None:
        if self.failed is not None:
            raise self.failed
        for session in self.sessions:
            session.extend(tokens)

    def begin_sampling(self, temperature: float, seed: Sequence[int]) -> None:
        for which, session in enumerate(self.sessions):
            session.begin_sampling(temperature, (*seed, which))

    def begin_models(self, load: Callable[[Any], DraftModel]) -> None:
        for session in self.sessions:
            session.begin_models(load)

    def sizeof(self) -> int | None:
        sizes = [session.sizeof() for session in self.sessions]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def close(self) -> None:
        with ExitStack() as all_of_them:  # closes all, even if one raises
            for session in reversed(self.sessions):
                all_of_them.callback(session.close)


class PriorityDrafter(Drafter):
    """Drafters in order of priority: each continues the draft of those before it.

    Args:
        drafters: highest priority first, at least one.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("drafters must hold at least one drafter, got none")
        self.drafters = tuple(drafters)
        names = [check_source_names(drafter.source_names) for drafter in drafters]
        self.counts = [len(each) for each in names]  # of each drafter's sources
        self.source_names = check_source_names(tuple(name for each in names for name in each))
        requests = [check_evidence(drafter.evidence) for drafter in drafters]
        # Drafters that ask for evidence: each gets that of the whole draft in a separate call.
        self.askers = [which for which, request in enumerate(requests) if request is not None]
        for request in requests:
            self.evidence = self.evidence if request is None else request | self.evidence
        self.assistants = tuple(each for drafter in drafters for each in drafter.assistants)
        specs = [drafter.spec for drafter in drafters]
        self.spec = None if None in specs else "+".join(str(spec) for spec in specs)

    def with_calibration(self, *, by_request: bool) -> Drafter:
        drafters = [drafter.with_calibration(by_request=by_request) for drafter in self.drafters]
        if all(new is old for new, old in zip(drafters, self.drafters, strict=True)):
            return self
        return PriorityDrafter(drafters)

    def start(self, tokens: Int32) -> DraftSession:
        sessions: list[DraftSession] = []
        with ExitStack() as begun:  # closes those already started if a later one raises
            for drafter in self.drafters:
                sessions.append(drafter.start(tokens))
                begun.callback(sessions[-1].close)
            begun.pop_all()
        return PrioritySession(self, sessions)
