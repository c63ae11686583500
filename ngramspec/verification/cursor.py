"""Access to a draft by the positions of its forward."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ngramspec.draft import Draft, Verdict
from ngramspec.verification.rule import children_tensor, proposal_tensor


class DraftCursor:
    """Access to a draft by the positions of its forward.

    Position 0 follows the last committed token, position i + 1 follows node i.
    """

    __slots__ = ("_children", "draft", "tokens")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.tokens: list[int] = draft.tokens.tolist()
        self._children = None if draft.parents is None else draft.children()

    def nodes(self, position: int) -> Sequence[int]:
        """The nodes drafted at a position; siblings in order."""
        if self._children is not None:
            return self._children[position]
        return (position,) if position < len(self.tokens) else ()

    def node_with(self, token: int, position: int) -> int | None:
        """The node with a token among those drafted at a position, or None."""
        return next((node for node in self.nodes(position) if self.tokens[node] == token), None)

    def verdict(self, accepted: Sequence[int], emitted: Sequence[int]) -> Verdict:
        """The result of the draft's verification, by its accepted nodes and committed tokens."""
        positions = (0, *[node + 1 for node in accepted])
        verified = len(accepted)
        if self._children is not None:  # and the siblings before an accepted node
            path = zip(accepted, positions, strict=False)
            verified += sum([self.nodes(at).index(node) for node, at in path])
        rejected = self.nodes(positions[-1]) if len(emitted) > len(accepted) else ()
        first = rejected[0] if rejected else None
        return Verdict(accepted, verified + len(rejected), tuple(emitted), first)

    def depths(self, positions: int) -> list[int]:
        """How many draft tokens lead to each position of the forward; 0 for padding."""
        depths = [0, *self.draft.depths()]
        return depths + [0] * (positions - len(depths))


def drafted_at(
    spots: Sequence[tuple[DraftCursor, int]], vocab: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The draft tokens at m spots and their distributions, for ``Rule.choose``.

    These are int64 (m, k) children, and their proposals, float32 (m, vocab) or (k, m, vocab), or
    None.
    """
    nodes = [cursor.nodes(at) if at <= len(cursor.tokens) else () for cursor, at in spots]
    pairs = [(cursor, each) for (cursor, _), each in zip(spots, nodes, strict=True)]
    tokens = [[cursor.tokens[node] for node in each] for cursor, each in pairs]
    drafts = [(cursor.draft, each) for cursor, each in pairs]
    return children_tensor(tokens, device), proposal_tensor(drafts, vocab, device)
