"""The prompts of a whole-call measurement: their tasks and their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ngramspec.measure.models import LoadedModel
from ngramspec.measure.sample_texts import sample_texts
from ngramspec.measure.tasks import (
    NOTHING,
    Prompt,
    fit,
    messages,
    read_tasks,
    unpredictable,
)

# The task of each of the package's own texts, by the text's name.
TASK_OF_TEXT = {
    "summarize": "summarization",
    "answer": "context_qa",
    "code": "code_completion",
    "rewrite": "code_edit",
    "chat": "chat",
}


def sample_prompts(loaded: LoadedModel) -> list[Prompt]:
    """The package's own texts as prompts, one for each task."""
    return [
        Prompt(
            TASK_OF_TEXT[text.name], text.name, tuple(loaded.encode(text.prompt, chat=text.chat))
        )
        for text in sample_texts()
    ]


def read_workload(path: Path, loaded: LoadedModel, *, chat: bool) -> list[Prompt]:
    """The prompts of a file of JSON lines, see ``read_tasks``.

    ``chat``: apply the model's chat template to prompts with turns marked by [INST].
    """
    prompts = read_tasks(path, lambda text: loaded.encode(text, chat=True))
    return [in_chat_template(each, loaded) for each in prompts] if chat else prompts


def in_chat_template(prompt: Prompt, loaded: LoadedModel) -> Prompt:
    """The prompt in the model's chat template; unchanged if no turns are marked in it."""
    turns = messages(loaded.tokenizer.decode(prompt.ids))
    if not turns:
        return prompt
    encoded = loaded.tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=True
    )
    return replace(prompt, ids=tuple(encoded["input_ids"]))


def known_tasks(prompts: Sequence[Prompt], wanted: Sequence[str]) -> list[str]:
    """The requested tasks; without a request, those of all prompts, and NOTHING ("nothing").

    A ValueError is raised for an unknown name.
    """
    tasks = [*dict.fromkeys(each.task for each in prompts)]
    names = {"nothing": NOTHING, **{task: task for task in tasks}, NOTHING: NOTHING}
    if unknown := [each for each in wanted if each not in names]:
        choices = ", ".join(["nothing", *tasks])
        raise ValueError(f"unknown task {unknown[0]!r}; choose from {choices}")
    return [names[each] for each in wanted] or [*tasks, NOTHING]


def with_random_texts(prompts: Sequence[Prompt], tokens: int, loaded: LoadedModel) -> list[Prompt]:
    """The prompts, and a copy of each with ``tokens`` random ids to be generated after it."""
    vocab = loaded.model.config.vocab_size
    return [*prompts, *unpredictable(prompts, tokens, vocab, loaded.eos_ids)]


def of_exact_lengths(prompts: Sequence[Prompt], lengths: Sequence[int]) -> list[list[Prompt]]:
    """For each length all prompts, cut to it or filled up with other prompts of their task."""
    tasks = dict.fromkeys(each.task for each in prompts)
    by_task = [[each for each in prompts if each.task == task] for task in tasks]
    return [[each for same in by_task for each in fit(same, length)] for length in lengths]
