"""TensorRT-LLM's drafter over a stand-in of its base class: texts, limits, departures, faults."""

from __future__ import annotations

import subprocess
import sys
from abc import ABC, abstractmethod
from types import ModuleType, SimpleNamespace

import pytest

from ngramspec.engines.tensorrt_llm import make_drafter


@pytest.fixture(autouse=True)
def stub(monkeypatch):
    class Drafter(ABC):
        def __init__(self, max_draft_len, max_total_draft_tokens, max_concurrency=None):
            self.most = max_draft_len, max_total_draft_tokens, max_concurrency

        @abstractmethod
        def prepare_draft_tokens(self, scheduled_requests, resource_manager=None):
            raise NotImplementedError

    names = ["tensorrt_llm", "tensorrt_llm._torch", "tensorrt_llm._torch.speculative"]
    names.append("tensorrt_llm._torch.speculative.drafter")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules[names[-1]].Drafter = Drafter
    return Drafter


def request(key, tokens, new=100):
    made = SimpleNamespace(request_id=key, py_draft_tokens=["stale"], tokens=list(tokens))
    made.py_orig_prompt_len, made.py_max_new_tokens = len(tokens), new
    made.get_tokens = lambda beam: made.tokens
    return made


def ask(drafter, *requests):
    drafter.prepare_draft_tokens(SimpleNamespace(generation_requests=list(requests)))
    return [each.py_draft_tokens for each in requests]


def test_requests_get_their_drafts(stub):
    drafter = make_drafter(4, vocab=50, max_len=200, options={"costs": "none"})
    assert isinstance(drafter, stub)
    assert drafter.most == (4, 4, None)
    one, two = request(1, [5, 6, 7, 8, 5, 6]), request(2, [9, 10, 11, 9], new=2)
    assert ask(drafter, one, two) == [[7, 8, 5, 6], [10]]  # the second has room for two tokens
    one.tokens += [7, 8, 5]
    assert ask(drafter, one)[0] == [6, 7, 8, 5]


def test_departed_requests_are_forgotten_and_ids_may_come_again():
    drafter = make_drafter(4, vocab=50, max_len=200, options={"costs": "none"})
    first = request(1, [5, 6, 7, 8, 5, 6])
    ask(drafter, first, request(2, [1, 2, 3]))
    ask(drafter, request(2, [1, 2, 3, 1]))
    assert ask(drafter, request(1, [9, 10, 11, 9, 10]))[0][:1] == [11]


def test_a_fault_leaves_requests_undrafted():
    drafter = make_drafter(4, vocab=50, max_len=200)
    bad = request(2, [1, 2])
    bad.get_tokens = None
    assert ask(drafter, request(1, [5, 6, 7, 8, 5, 6]), bad) == [[], []]


def test_wrong_options_are_refused():
    with pytest.raises(ValueError, match="options: no option slope; known: drafter"):
        make_drafter(4, vocab=50, max_len=200, options={"slope": 1})


def test_without_tensorrt_llm_the_error_says_what_to_install():
    code = """
import sys
sys.modules["tensorrt_llm"] = None
from ngramspec.engines.tensorrt_llm import make_drafter
try:
    make_drafter(4, vocab=50, max_len=200)
except ImportError as error:
    assert "pip install tensorrt-llm" in str(error), error
else:
    sys.exit("it was imported")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
