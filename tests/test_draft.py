"""Parts of drafts."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import draft_of, paths
from hypothesis import example, given
from hypothesis import strategies as st

from ngramspec import Draft, Proposal

PARENTS = st.integers(0, 12).flatmap(
    lambda n: st.tuples(*(st.integers(-1, node - 1) for node in range(n)))
)


def tree(parents):
    """A draft with those parents in which each field tells a node from the others."""
    n = len(parents)
    nodes = np.arange(n)
    ids = np.repeat(nodes, nodes + 1).astype(np.int32)  # node i has i + 1 ids
    proposal = Proposal(np.cumsum([0, *(nodes + 1)], dtype=np.int32), ids, ids / np.float32(64))
    confidence, source = (nodes / 64).astype(np.float32), nodes.astype(np.int8)
    return Draft(
        (nodes + 100).astype(np.int32), np.array(parents, np.int32), confidence, proposal, source
    )


@given(PARENTS, st.integers(0, 6))
@example((-1, 0, 1, -1, 3), 2)  # what is left out lies before what is kept
def test_what_is_within_a_depth_keeps_its_paths_and_all_that_is_known_of_it(parents, depth):
    draft = tree(parents)
    part = draft.within(depth)
    assert paths(part) == [path for path in paths(draft) if len(path) <= depth]
    for at, token in enumerate(part.tokens.tolist()):
        node = token - 100
        assert part.source[at] == node
        assert part.confidence[at] == draft.confidence[node]
        for ours, theirs in zip(part.proposal.of(at), draft.proposal.of(node), strict=True):
            np.testing.assert_array_equal(ours, theirs)
    for name, kind in (("tokens", np.int32), ("parents", np.int32), ("source", np.int8)):
        assert getattr(part, name).dtype == kind
    assert part.proposal.starts.dtype == part.proposal.tokens.dtype == np.int32


@pytest.mark.parametrize("depth", range(5))
def test_of_a_chain_its_first_tokens_are_within_a_depth(depth):
    assert draft_of([7, 8, 9]).within(depth).tokens.tolist() == [7, 8, 9][:depth]
