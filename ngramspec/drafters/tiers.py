"""Several drafters in order of priority, as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ngramspec.draft import (
    EMPTY_DRAFT,
    NO_TOKENS,
    Draft,
    Drafter,
    DraftSession,
    Float32,
    Int8,
    Int32,
    joined,
)
from ngramspec.drafters.prefix_tree import pack


class TieredSession(DraftSession):
    """One session per tier, asked in order."""

    def __init__(self, sessions: list[DraftSession], offsets: list[int]) -> None:
        self.sessions = sessions
        self.offsets = offsets  # where each session's tier names begin in the drafter's
        self.parts: list[tuple[int, Draft]] = []  # (session, its part) of the last draft

    def propose(self, gamma: int, cost: Float32 | None = None, *, tree: bool = False) -> Draft:
        """In a tree, the chain that the tiers make in order, merged with what each knows itself."""
        chain = self.propose_after(NO_TOKENS, gamma)
        if not tree:
            return chain
        asked = enumerate(session.propose(gamma, tree=True) for session in self.sessions)
        self.parts = [(which, part) for which, part in asked if len(part)]
        own = [
            Draft(part.tokens, part.parents, None, None, self._source(which, part))
            for which, part in self.parts
        ]
        return pack([chain, *own], gamma)

    def propose_after(self, drafted: Int32, gamma: int) -> Draft:
        self.parts = []
        so_far, room = drafted, gamma
        for which, session in enumerate(self.sessions):
            if room <= 0:
                break
            part = session.propose_after(so_far, room)
            if len(part):
                self.parts.append((which, part))
                so_far = np.concatenate((so_far, part.tokens)) if len(so_far) else part.tokens
                room -= len(part)
        if not self.parts:
            return EMPTY_DRAFT
        source = np.concatenate([self._source(*each) for each in self.parts])
        proposal = joined([part for _, part in self.parts])
        return Draft(so_far[len(drafted) :], proposal=proposal, source=source)

    def _source(self, which: int, part: Draft) -> Int8:
        inner = np.zeros(len(part), np.int8) if part.source is None else part.source
        return inner + np.int8(self.offsets[which])

    def observe(self, draft: Draft, accepted: Sequence[int], tested: int | None = None) -> None:
        if draft.parents is not None:
            self._observe_tree([draft.tokens[node] for node in accepted])
            return
        judged = min(len(draft), len(accepted) + 1) if tested is None else tested
        begin = 0
        for which, part in self.parts:
            mine = min(max(judged - begin, 0), len(part))
            if mine:
                taken = min(max(len(accepted) - begin, 0), len(part))
                self.sessions[which].observe(part, range(taken), mine)
            begin += len(part)
        self.parts = []

    def _observe_tree(self, accepted: list[int]) -> None:
        """Tell each tier which of its own nodes lie on the accepted path."""
        for which, part in self.parts:
            children, path = part.children(), [-1]
            for token in accepted:
                below = [node for node in children[path[-1] + 1] if part.tokens[node] == token]
                if not below:
                    break
                path += below
            self.sessions[which].observe(part, path[1:], None)
        self.parts = []

    def extend(self, tokens: Int32) -> None:
        for session in self.sessions:
            session.extend(tokens)

    def heat(self, temperature: float, seed: Sequence[int]) -> None:
        for which, session in enumerate(self.sessions):
            session.heat(temperature, (*seed, which))

    def sizeof(self) -> int | None:
        sizes = [session.sizeof() for session in self.sessions]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def close(self) -> None:
        for session in self.sessions:
            session.close()


class TieredDrafter(Drafter):
    """Asks its drafters in order; each continues where those above it have nothing more to say.

    Args:
        drafters: highest priority first, at least one.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        if not drafters:
            raise ValueError("drafters must hold at least one drafter, got none")
        self.drafters = tuple(drafters)
        self.tiers = tuple(name for drafter in drafters for name in drafter.tiers)
        specs = [drafter.spec for drafter in drafters]
        self.spec = None if None in specs else "+".join(str(spec) for spec in specs)

    def start(self, tokens: Int32) -> DraftSession:
        offsets = [0]
        for drafter in self.drafters[:-1]:
            offsets.append(offsets[-1] + len(drafter.tiers))
        return TieredSession([drafter.start(tokens) for drafter in self.drafters], offsets)
