"""Former names, which warn and do what the new ones do."""

from __future__ import annotations

import numpy as np
import pytest
from doubles import ScriptedSession, draft_of, random_drafter

from ngramspec import Draft


def test_the_first_nodes_and_chains_of_a_draft():
    draft = draft_of([3, 4, 5])
    with pytest.warns(DeprecationWarning, match="Draft.first"):
        assert draft.head(2).tokens.tolist() == [3, 4]
    tree = Draft(draft.tokens, np.array([-1, 0, 1], np.int32))
    with pytest.warns(DeprecationWarning, match="Draft.as_chain"):
        assert tree.straight().parents is None


def test_a_session_that_takes_note_of_sampling_by_its_former_name():
    told = []

    class Former(ScriptedSession):
        def heat(self, temperature, seed):
            told.append((temperature, tuple(seed)))

    session = Former(random_drafter(9), np.array([1], np.int32))
    with pytest.warns(DeprecationWarning, match=r"Former\.heat is called begin_sampling now"):
        session.begin_sampling(0.7, (1, 2))
    assert told == [(0.7, (1, 2))]
