"""The prompts of an end-to-end measurement: read, chosen, fitted, and random texts after them."""

from __future__ import annotations

import pytest
from forced_text import tiny_loaded

from ngramspec.measure.tasks import (
    NOTHING,
    Prompt,
    check_prompts,
    fit,
    known_tasks,
    read_prompts,
    sample_prompts,
    unpredictable,
)


def test_prompts_of_texts_and_of_ids(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"group": "chat", "id": 1, "prompt": [1, 2, 3], "output": [4]}\n\n'
        '{"group": "code_edit", "id": "x", "prompt": "ab"}\n"c"\n'
    )
    found = read_prompts(path, lambda text: [ord(each) for each in text])
    known = [Prompt("chat", "1", (1, 2, 3)), Prompt("code_edit", "x", (97, 98))]
    assert found == [*known, Prompt("questions", "4", (99,))]
    for bad in ('{"group": "g", "id": 1}', "[]", '{"prompt": [1.5]}', '{"prompt": " "}', "{", ""):
        path.write_text(bad)
        with pytest.raises(ValueError, match=r"line 1|no prompt"):
            read_prompts(path, lambda text: [7])


def test_prompts_that_a_model_cannot_continue_are_named():
    loaded = tiny_loaded()
    vocab, most = loaded.model.config.vocab_size, loaded.max_positions
    check_prompts(
        loaded, [Prompt("t", "a", (0, vocab - 1)), Prompt("t", "b", (1,) * (most - 3))], 4
    )
    for ids, message in (
        ((0, vocab), rf"t, x: token ids must be in 0..{vocab - 1}"),
        ((-1, 1), "t, x: token ids must be in"),
        ((1,) * (most - 2), f"t, x: {most - 2} tokens and 4 new ones exceed {most} positions"),
    ):
        with pytest.raises(ValueError, match=message):
            check_prompts(loaded, [Prompt("t", "x", ids)], 4)


def test_fitted_prompts_keep_their_end_and_get_others_in_front():
    prompts = [Prompt("t", "a", (1, 2, 3)), Prompt("t", "b", (4, 5))]
    assert [each.ids for each in fit(prompts, 2)] == [(2, 3), (4, 5)]
    assert [each.ids for each in fit(prompts, 6)] == [(3, 4, 5, 1, 2, 3), (5, 1, 2, 3, 4, 5)]
    assert {each.length for each in fit(prompts, 6)} == {6}


def test_unpredictable_text_is_random_repeatable_and_spares_some_ids():
    prompts = [Prompt(task, str(n), (n,)) for task in "ab" for n in range(2)]
    made = unpredictable(prompts, 50, 10, never=[3])
    assert [each.id for each in made] == ["a 0", "b 0", "a 1", "b 1"]
    assert {each.task for each in made} == {NOTHING}
    assert made == unpredictable(prompts, 50, 10, never=[3])
    assert len({each.text for each in made}) == 4
    assert set().union(*(each.text for each in made)) == set(range(10)) - {3}


def test_the_package_s_own_texts_are_one_of_each_task():
    tasks = ["summarization", "context_qa", "code_completion", "code_edit", "chat"]
    prompts = sample_prompts(tiny_loaded())
    assert [each.task for each in prompts] == tasks
    assert known_tasks(prompts, []) == tasks
    assert known_tasks(prompts, ["chat", "nothing"]) == ["chat", NOTHING]
    with pytest.raises(ValueError, match="unknown task 'poetry'; choose from nothing, summ"):
        known_tasks(prompts, ["poetry"])
