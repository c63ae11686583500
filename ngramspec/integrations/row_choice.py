"""What became of a row's draft."""

from __future__ import annotations

from ngramspec.draft import Draft, Int32


def accepted_nodes(draft: Draft, new: Int32) -> list[int]:
    """The nodes of a draft that the committed tokens ``new``, int32 (n,), agree with, in order."""
    committed = new.tolist()
    if draft.parents is None:
        accepted = 0
        for mine, its in zip(draft.tokens[: len(committed)].tolist(), committed, strict=False):
            if mine != its:
                break
            accepted += 1
        return list(range(accepted))
    tokens = draft.tokens.tolist()
    children, path = draft.children(), [-1]
    for token in committed:
        right = next((node for node in children[path[-1] + 1] if tokens[node] == token), None)
        if right is None:
            break
        path.append(right)
    return path[1:]
