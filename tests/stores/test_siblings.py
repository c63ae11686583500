"""Several answers to one prompt are drafted from each other while they are generated."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ngramspec
from ngramspec import Speculator
from ngramspec.drafters import build_drafter
from ngramspec.drafters.call import CallStores
from ngramspec.stepwise import open_generation
from ngramspec.stores.shared import MOST_READ, sibling_answers


def int32(tokens):
    return np.array(list(tokens), np.int32)


def rows_of(count, tokens=1000):
    call = CallStores(lambda: build_drafter("copy+ngram"), None, None, print)
    call.join_equal([int32([1, 2])] * count, tokens)
    rows = [call.row(100_000, index) for index in range(count)]
    for row in rows:
        row.begin(int32([1, 2]))
    return rows


def drafted(row, tokens, gamma=6):
    return row.drafter().start(int32(tokens)).propose(gamma).tokens.tolist()


def test_an_answer_is_drafted_from_the_others_at_once():
    first, second, third = rows_of(3)
    first.append(int32(range(100, 110)))
    assert drafted(second, [1, 2, 100, 101]) == [102, 103, 104, 105, 106, 107]
    second.append(int32([200, 201, 202]))
    assert drafted(third, [1, 2, 200]) == [201, 202]
    assert drafted(second, [1, 2, 200]) == []  # its own text is in the sequence itself


def test_rows_with_other_prompts_see_nothing():
    call = CallStores(lambda: build_drafter("copy+ngram"), None, None, print)
    call.join_equal([int32(each) for each in ([1, 2], [1, 3], [1, 2])], 100)
    rows = [call.row(100_000, index) for index in range(3)]
    rows[0].append(int32(range(100, 110)))
    assert drafted(rows[1], [1, 3, 100, 101]) == []
    assert drafted(rows[2], [1, 2, 100, 101], 2) == [102, 103]


def test_other_calls_see_nothing():
    first, _ = rows_of(2)
    first.append(int32(range(100, 110)))
    _, other = rows_of(2)
    assert drafted(other, [1, 2, 100, 101]) == []


def test_the_number_of_texts_and_their_length_are_bounded():
    rows = rows_of(MOST_READ + 3, tokens=50)
    rows[0].append(int32(range(100, 300)))
    assert drafted(rows[-1], [1, 290, 291], 3) == [292, 293, 294]
    assert drafted(rows[-1], [1, 110, 111], 3) == []
    assert len(rows[0].drafter().stores) == MOST_READ
    assert drafted(rows[1], [1, 290, 291], 3) == []  # too many are nearer


@pytest.mark.parametrize("spec", ["ngram(order=3)", "none"])
def test_drafters_that_take_no_stores(spec):
    call = CallStores(lambda: build_drafter(spec, policy="priority"), None, None, print)
    call.join_equal([int32([1])] * 2, 10)
    row = call.row(100)
    assert row.drafter() is not None
    row.append(int32([1, 2, 3]))


@pytest.mark.parametrize("greedy", [True, False])
def test_sampled_rows_of_a_batch_are_joined(tiny, greedy, monkeypatch):
    """Greedy rows with equal prompts have equal texts, so they would learn nothing."""
    join, joined = CallStores.join_equal, []

    def counted(stores, prompts, tokens):
        joined.append(len(prompts))
        join(stores, prompts, tokens)

    monkeypatch.setattr(CallStores, "join_equal", counted)
    prompt = torch.tensor([[5, 6, 7, 8, 15, 16]])
    options = {"max_new_tokens": 60, "do_sample": not greedy}
    if not greedy:
        options |= {"num_return_sequences": 4, "temperature": 0.3}
    prompts = prompt.repeat(4, 1) if greedy else prompt
    torch.manual_seed(0)
    speculator = Speculator(gamma=4)
    out = ngramspec.generate(tiny, prompts, speculator=speculator, **options)
    if greedy:
        assert out.tolist() == tiny.generate(prompts, **options).tolist()
    assert out.shape == (4, 66)
    assert joined == ([] if greedy else [4])
    assert speculator.stats.drafter_faults == 0


def test_an_answer_that_another_has_given_is_drafted_whole(tiny):
    """The second answer's drafts come from the first one: its prompt holds nothing of it."""
    prompt = torch.tensor([[5, 6, 7, 8, 15, 16]])
    first, second = sibling_answers(2, 60)

    def accepted(stores):
        speculator = Speculator(gamma=4)
        with open_generation(
            tiny,
            prompt,
            speculator=speculator,
            extra_stores=stores,
            max_new_tokens=60,
            do_sample=False,
        ) as run:
            while not run.finished:
                run.step()
        source_names = speculator.stats.sources
        return source_names["store"].accepted if "store" in source_names else 0

    assert accepted([]) == 0
    assert accepted([first]) == 0
    assert accepted([second]) > 5
