"""Finds the accepted nodes of a row's draft."""

from __future__ import annotations

from ngramspec._native.row_text import agreed
from ngramspec.draft import Draft, Int32


def accepted_nodes(draft: Draft, committed: Int32, begin: int, end: int) -> list[int]:
    """The nodes of a draft that agree with committed[begin:end], int32, in order."""
    if draft.parents is None:
        return list(range(agreed(draft.tokens, committed, begin, end)))
    tokens = draft.tokens.tolist()
    children, path = draft.children(), [-1]
    for token in committed[begin:end].tolist():
        right = next((node for node in children[path[-1] + 1] if tokens[node] == token), None)
        if right is None:
            break
        path.append(right)
    return path[1:]
