"""Branches of beams' drafts: the target's runners-up where the last forward knows them.

Beams advance together. Where one took a token that was not drafted, the replay of beam steps ended
for all of them, and the others' logits were not used. They say which tokens come next there: the
best ones become branches beside each beam's own draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ngramspec.draft import Draft, Verdict
from ngramspec.verification.sampler import DraftCursor

CANDIDATES_PER_POSITION = 2  # branches at each position, the most probable token among them
CANDIDATE_SOURCE = "runner-up"  # the name of their source in the statistics

KnownTokens = dict[tuple[int, ...], list[int]]  # tokens behind a beam -> the best ones behind those


class BranchGain:
    """Whether forwards with branches pay: the beam steps per cost that they gave, on average."""

    FIRST = 1.25  # what is taken for that at first
    MEMORY = 0.9  # of the average, at the next forward with branches
    TRIED_EVERY = 16  # steps, while they do not pay

    def __init__(self) -> None:
        self._average = self.FIRST
        self._skipped = 0

    def pays(self) -> bool:
        """Whether the next forward should have branches."""
        if self._average >= 1.0:
            return True
        self._skipped += 1
        return self._skipped % self.TRIED_EVERY == 0

    def count(self, steps: int, cost: float) -> None:
        """Count a forward with branches, which gave some beam steps and cost so many plain ones."""
        self._average += (1 - self.MEMORY) * (steps / cost - self._average)


def look_ahead(
    ends: Sequence[tuple[int, int | None]], cursors: Sequence[DraftCursor], logits: torch.Tensor
) -> list[KnownTokens]:
    """What a forward's unused logits say of the beams' next tokens, the nearest ones first.

    Args:
        ends: each beam's row and position of the forward; None: its logits are not at hand.
        cursors: each row's draft.
        logits: (rows, n + 1, vocab).
    """
    places: list[tuple[int, tuple[int, ...], int, int]] = []
    for beam, (row, end) in enumerate(ends):
        found: list[tuple[tuple[int, ...], int]] = [] if end is None else [((), end)]
        for tokens, position in found:  # it grows
            places.append((beam, tokens, row, position))
            cursor = cursors[row]
            behind = cursor.nodes(position)
            found += [((*tokens, cursor.tokens[node]), node + 1) for node in behind]
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


def with_branches(chain: Draft, known: KnownTokens, most: int, deepest: int, tier: int) -> Draft:
    """A chain with the target's runners-up beside it, as a tree.

    Args:
        chain: what the drafter proposed; its nodes come first.
        known: of this beam.
        most: nodes of the tree; the chain is cut to half of them.
        deepest: tokens of a path.
        tier: source of the branches.
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
    source = np.full(len(tokens), tier, np.int8)
    source[: len(chain)] = 0 if chain.source is None else chain.source
    tree = Draft(np.array(tokens, np.int32), np.array(parents, np.int32), source=source)
    return tree.as_chain()


def depth_of(tree: Draft) -> int:
    """Tokens of a tree's longest path."""
    return max(DraftCursor(tree).depths(len(tree) + 1))


def drafted_by(tree: Draft, tier: int) -> int:
    """How many nodes of a tree with branches of a tier are the drafter's own."""
    return 0 if tree.source is None else int((tree.source != tier).sum())


def of_chain(verdict: Verdict, count: int) -> Verdict:
    """The part of a verdict on a tree that is about its first ``count`` nodes, a chain."""
    accepted = [node for at, node in enumerate(verdict.accepted) if node == at and node < count]
    went_on = len(verdict.accepted) > len(accepted) or verdict.rejected is not None
    wrong = len(accepted) if went_on and len(accepted) < count else None
    tested = len(accepted) + (wrong is not None)
    return Verdict(accepted, tested, verdict.emitted, wrong)
