"""Branches of beams' drafts: the target's top-k candidates from the last forward.

Beams advance in lock-step. When one of them selects a token that was not drafted, the replay of
beam steps ends for all, and the logits of the other beams remain unused. The most probable tokens
by these logits become branches that are added to each beam's draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ngramspec.draft import Draft, Verdict
from ngramspec.verification.cursor import DraftCursor

CANDIDATES_PER_POSITION = 2  # branches at each position, including the most probable; not tuned
CANDIDATE_SOURCE = "top_k"  # the name of their draft source in the statistics

KnownTokens = dict[tuple[int, ...], list[int]]  # tokens after a beam -> the best next tokens


class BranchGain:
    """Whether branches pay: the average beam steps per cost of forwards with branches.

    The constants are not tuned.
    """

    INITIAL_AVERAGE = 1.25  # beam steps per cost
    DECAY = 0.9  # weight of the old average at each forward with branches
    RETRY_INTERVAL = 16  # steps between forwards with branches while these do not pay

    def __init__(self) -> None:
        self._average = self.INITIAL_AVERAGE
        self._skipped = 0

    def pays(self) -> bool:
        """Whether the next forward should have branches."""
        if self._average >= 1.0:
            return True
        self._skipped += 1
        return self._skipped % self.RETRY_INTERVAL == 0

    def count(self, steps: int, cost: float) -> None:
        """Record a forward with branches: its beam steps, and its cost in one-token forwards."""
        self._average += (1 - self.DECAY) * (steps / cost - self._average)


def look_ahead(
    ends: Sequence[tuple[int, int | None]], cursors: Sequence[DraftCursor], logits: torch.Tensor
) -> list[KnownTokens]:
    """The beams' most probable next tokens by a forward's unused logits, nearest first.

    ``ends`` holds each beam's row and position in the forward, (rows, n + 1, vocab) ``logits``;
    position None: it has no logits there.
    """
    places: list[tuple[int, tuple[int, ...], int, int]] = []
    for beam, (row, end) in enumerate(ends):
        found: list[tuple[tuple[int, ...], int]] = [] if end is None else [((), end)]
        for tokens, position in found:  # ``found`` grows in the loop
            places.append((beam, tokens, row, position))
            cursor = cursors[row]
            nodes = cursor.nodes(position)
            found += [((*tokens, cursor.tokens[node]), node + 1) for node in nodes]
    known: list[KnownTokens] = [{} for _ in ends]
    if not places:
        return known
    at = torch.tensor([place[2:] for place in places], device="cpu")
    rows, positions = at.to(logits.device, non_blocking=True).unbind(dim=1)
    most = min(CANDIDATES_PER_POSITION, logits.shape[-1])
    best = logits[rows, positions].topk(most, dim=-1).indices.tolist()
    for (beam, tokens, _, _), ids in zip(places, best, strict=True):
        known[beam][tokens] = ids
    return known


def with_branches(
    chain: Draft, known: KnownTokens, most: int, deepest: int, branch_source: int
) -> Draft:
    """Add a beam's ``known`` next tokens to a chain as branches, whose draft source is
    ``branch_source``.

    The chain's nodes come first in the tree. The tree has at most ``most`` nodes, half of them from
    the chain, and paths of at most ``deepest`` tokens.
    """
    chain = chain.first(min(max(most // 2, 1), most, deepest))
    tokens, parents = chain.tokens.tolist(), [*range(-1, len(chain) - 1)]
    places: dict[tuple[int, ...], int] = {tuple(tokens[:n]): n - 1 for n in range(len(tokens) + 1)}
    for path, best in known.items():
        for token in best if path in places and len(path) < deepest else ():
            longer = (*path, token)
            if longer not in places and len(tokens) < most:
                places[longer] = len(tokens)
                tokens.append(token)
                parents.append(places[path])
    source = np.full(len(tokens), branch_source, np.int8)
    source[: len(chain)] = 0 if chain.source is None else chain.source
    tree = Draft(np.array(tokens, np.int32), np.array(parents, np.int32), source=source)
    return tree.as_chain()


def of_chain(verdict: Verdict, count: int) -> Verdict:
    """The part of a tree's verdict that concerns its first ``count`` nodes, a chain."""
    accepted = [node for at, node in enumerate(verdict.accepted) if node == at and node < count]
    went_on = len(verdict.accepted) > len(accepted) or verdict.rejected is not None
    wrong = len(accepted) if went_on and len(accepted) < count else None
    verified = len(accepted) + (wrong is not None)
    return Verdict(accepted, verified, verdict.emitted, wrong)
