"""llama-cpp-python's draft model, called as ``Llama.generate`` calls it."""

from __future__ import annotations

import importlib
import sys
from abc import ABC, abstractmethod
from types import ModuleType

import numpy as np
import pytest
from doubles import Clock


@pytest.fixture
def module(monkeypatch):
    """ngramspec.engines.llama_cpp over the one class that it imports."""

    class LlamaDraftModel(ABC):
        @abstractmethod
        def __call__(self, input_ids, /, **kwargs):
            raise NotImplementedError

    parent, child = ModuleType("llama_cpp"), ModuleType("llama_cpp.llama_speculative")
    child.LlamaDraftModel = LlamaDraftModel
    monkeypatch.setitem(sys.modules, "llama_cpp", parent)
    monkeypatch.setitem(sys.modules, "llama_cpp.llama_speculative", child)
    monkeypatch.delitem(sys.modules, "ngramspec.engines.llama_cpp", raising=False)
    yield importlib.import_module("ngramspec.engines.llama_cpp")
    del sys.modules["ngramspec.engines.llama_cpp"]


def generate(draft, prompt, follow, steps, clock=None, cost=lambda n: 1.0):
    """As Llama.generate does: evaluate, sample, stop at the first wrong token, draft.

    Args:
        follow: the token after a text.
        cost: seconds of an evaluation of n tokens.
    """
    text, calls, drafted = list(prompt), 0, 0
    pending: list[int] = []
    for _ in range(steps):
        if clock is not None:
            clock.now += cost(1 + len(pending))
        text.append(follow(text))
        for token in pending:
            if token != text[-1]:
                break
            text.append(follow(text))
        buffer = np.full(4096, -1, np.intc)
        buffer[: len(text)] = text
        pending = draft(buffer[: len(text)]).astype(int).tolist()
        calls, drafted = calls + 1, drafted + len(pending)
    return text, drafted


def period(text):
    return text[-7]


def wild(text):
    return (text[-1] * 7919 + len(text) * 104729) % 1009


@pytest.mark.parametrize("stores", [[], [{"namespace": "x"}]])
def test_what_repeats_is_drafted_and_accepted(module, stores):
    draft = module.NgramspecDraft(10, options={"costs": "none", "stores": stores})
    text, _ = generate(draft, range(1, 8), period, 20)
    assert text[7:] == [1 + at % 7 for at in range(len(text) - 7)]
    assert len(text) > 7 + 3 * 20
    assert draft.rows.stats.accepted > 40
    assert draft.rows.stats.opened == 1


def test_drafts_are_of_the_type_that_is_asked_for(module):
    draft = module.NgramspecDraft(4, options={"costs": "none"})
    got = draft(np.array([5, 6, 7, 8, 5, 6], np.intc))
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.intc
    assert got.tolist() == [7, 8, 5, 6]
    draft = module.NgramspecDraft(4, options={"drafter": "copy"})
    nothing = draft(np.array([5], np.intc))
    assert nothing.dtype == np.intc
    assert nothing.shape == (0,)


def test_prompts_are_not_counted_as_generated(module):
    """Another and longer prompt, and the same text with a next turn's prompt in it."""
    draft = module.NgramspecDraft(4, options={"costs": "none"})
    draft(np.array([1, 2, 3, 1, 2], np.intc))
    draft(np.arange(40, 60, dtype=np.intc))
    assert draft.rows.stats.emitted == 2
    draft(np.arange(40, 90, dtype=np.intc))
    assert draft.rows.stats.emitted == 3
    assert draft.rows.stats.opened == 2


def test_what_was_accepted_is_counted_as_generated(module):
    draft = module.NgramspecDraft(4, options={"costs": "none"})
    text = np.array([5, 6, 7, 8, 5, 6, 7, 8, 5, 6], np.intc)
    assert draft(text[:6]).tolist() == [7, 8, 5, 6]
    text[6] = 7  # llama.cpp writes into the array that it gave
    draft(text)
    assert draft.rows.stats.emitted == 5
    assert draft.rows.stats.accepted == 4


def test_drafts_leave_room_in_the_context(module):
    draft = module.NgramspecDraft(10, n_ctx=20, options={"costs": "none"})
    for n in range(12, 22):
        text = np.array([at % 3 for at in range(n)], np.intc)
        assert n + len(draft(text)) + 1 <= max(20, n + 1)


def test_where_wide_evaluations_are_dear_nothing_is_drafted_in_the_end(module):
    """A position costs as much as a step; the text cannot be guessed."""
    clock = Clock()
    draft = module.NgramspecDraft(10, clock=clock)
    text, _ = generate(draft, range(50), wild, 400, clock, lambda n: 0.01 * n)
    plain = 0.01 * (len(text) - 50)
    assert clock.now < plain / 0.97


def test_where_copies_pay_they_are_drafted(module):
    clock = Clock()
    draft = module.NgramspecDraft(10, clock=clock)
    cost = lambda n: 0.01 * (1 + 0.3 * (n - 1))  # noqa: E731
    text, _ = generate(draft, range(1, 8), period, 200, clock, cost)
    assert 0.01 * (len(text) - 7) > 1.5 * clock.now


def test_what_cannot_be_guessed_loses_little_behind_copies(module):
    """With the costs of other engines and drafts of any length it takes 4 % longer than plain."""
    clock = Clock()
    draft = module.NgramspecDraft(10, clock=clock)
    cost = lambda n: 0.01 * (1 + 0.3 * (n - 1))  # noqa: E731
    generate(draft, range(1, 8), period, 30, clock, cost)
    said = np.random.default_rng(0).integers(0, 12, 400).tolist()
    began = clock.now
    text, drafted = generate(draft, said[:40], lambda text: said[len(text)], 110, clock, cost)
    assert drafted > 0
    assert clock.now - began < 1.02 * 0.01 * (len(text) - 40)


def test_a_draft_must_be_nearly_sure_until_costs_are_measured(module):
    costs = module.LlamaCosts(10)
    for _ in range(20):
        costs.record_time(1, 0, 0.01)
    assert costs.curve(1)[:2] == pytest.approx([1, 1.7 * 1.1])
    for _ in range(20):
        costs.record_time(1, 1, 0.011)
        costs.record_time(1, 0, 0.01)
    assert costs.curve(1)[1] == pytest.approx(1.1 * 1.1 * 1.02, rel=0.1)


def test_what_a_draft_lost_is_regained_by_and_by(module):
    costs = module.LlamaCosts(10)
    costs.curve(1)
    for _ in range(20):
        costs.record_time(1, 0, 0.01)
    affordable = []
    for drafted, steps in ((0, 1), (1, 1), (0, 60), (0, 10)):  # one draft, which is rejected
        for _ in range(steps):
            costs.judged(drafted, 0)
        affordable.append(bool(costs.curve(1)[1] < 10))
    assert affordable == [True, False, False, True]
