"""A hundred requests of the server's fuzzer."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from serving import ThreadWorker

from fuzz.server import fuzz
from fuzz.server_requests import draw
from ngramspec.server import grammars

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")


def test_a_hundred_requests_have_their_answers():
    with patch.object(grammars, "_Worker", ThreadWorker):
        found = fuzz(100, seed=0)
    assert found.findings == []
    assert found.compared > 15
    assert sum(found.outcomes.values()) == 100


def test_a_seed_is_the_same_request_everywhere():
    assert [repr(draw(seed)) for seed in range(50)] == [repr(draw(seed)) for seed in range(50)]
    assert len({repr(draw(seed)) for seed in range(50)}) == 50
