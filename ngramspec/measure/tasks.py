"""The package's own prompts: those of the demo, and the default of ``ngramspec bench``."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from itertools import chain, cycle, zip_longest
from pathlib import Path

from ngramspec.measure.models import LoadedModel
from ngramspec.measure.traces import json_lines


@dataclass(frozen=True, slots=True)
class SampleText:
    """A prompt to continue."""

    name: str
    title: str
    prompt: str  # without a newline at its end
    task: str = ""  # as which ``ngramspec bench`` reports it
    chat: bool = True  # whether it is a user's message, not a text to continue as it is


def sample_texts() -> list[SampleText]:
    """The four texts of the demo, and a letter to answer."""
    return [
        SampleText("summarize", "Summarize an article", _read("summarize.txt"), "summarization"),
        SampleText("answer", "Answer from a context", _read("answer.txt"), "context_qa"),
        SampleText("code", "Go on with code", _read("code.py.txt"), "code_completion", chat=False),
        SampleText("rewrite", "Rewrite a file", _read("rewrite.txt"), "code_edit"),
        SampleText("chat", "Answer a letter", _read("chat.txt"), "chat"),
    ]


def _read(name: str) -> str:
    path = files("ngramspec.measure") / "data" / name
    return path.read_text(encoding="utf-8").rstrip("\n")


NOTHING = "nothing to predict"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to continue."""

    task: str  # the group in which its figures are reported
    id: str
    ids: tuple[int, ...]
    text: tuple[int, ...] | None = None  # what the model is forced to generate; None: its own text
    length: int | None = None  # what it was cut or filled up to

    @property
    def whole(self) -> tuple[int, ...] | None:
        """The prompt and its text, for ``forced_model``; None without a text."""
        return None if self.text is None else self.ids + self.text


def read_prompts(path: Path, encode: Callable[[str], list[int]]) -> list[Prompt]:
    """Read prompts: JSON lines, each a text or an object with ``prompt``, a text or token ids.

    An object may name its ``group`` (else the file's stem) and ``id`` (else the line's number). A
    ValueError names the first line without a prompt, or says that there is none.
    """
    prompts = []
    for number, fields in json_lines(path):
        given = fields if isinstance(fields, dict) else {"prompt": fields}
        ids = given.get("prompt")
        if isinstance(ids, str) and ids.strip():
            ids = encode(ids)
        if not (isinstance(ids, list) and ids and all(type(each) is int for each in ids)):
            raise ValueError(f"{path}, line {number}: prompt must be a text or a list of token ids")
        group, name = given.get("group", path.stem), given.get("id", number)
        prompts.append(Prompt(str(group), str(name), tuple(ids)))
    if not prompts:
        raise ValueError(f"{path} holds no prompt")
    return prompts


def check_prompts(loaded: LoadedModel, prompts: Iterable[Prompt], new: int) -> None:
    """Raise a ValueError unless the model can continue the prompts by ``new`` tokens."""
    from ngramspec.hf_model.compat.models import vocab_size  # which needs torch

    vocab, limit = vocab_size(loaded.model), loaded.max_positions
    for prompt in prompts:
        name, count = f"{prompt.task}, {prompt.id}", len(prompt.ids)
        if min(prompt.ids) < 0 or max(prompt.ids) >= vocab:
            raise ValueError(f"{name}: token ids must be in 0..{vocab - 1}")
        if limit is not None and count + new - 1 > limit:
            raise ValueError(f"{name}: {count} tokens and {new} new ones exceed {limit} positions")


def prompts_of(loaded: LoadedModel, path: Path | None, *, chat: bool = True) -> list[Prompt]:
    """The prompts of a file, see ``read_prompts``, or for None the package's own."""
    if path is None:
        return sample_prompts(loaded)
    return read_prompts(path, partial(loaded.encode, chat=chat))


def sample_prompts(loaded: LoadedModel) -> list[Prompt]:
    """The package's own texts as prompts, one for each task."""
    return [
        Prompt(text.task, text.name, tuple(loaded.encode(text.prompt, chat=text.chat)))
        for text in sample_texts()
    ]


def known_tasks(prompts: Sequence[Prompt], wanted: Sequence[str]) -> list[str]:
    """The requested tasks, of which "nothing" is NOTHING; without a request, those of all prompts.

    A ValueError is raised for an unknown name.
    """
    tasks = [*dict.fromkeys(each.task for each in prompts)]
    names = {"nothing": NOTHING, **{task: task for task in tasks}, NOTHING: NOTHING}
    if unknown := [each for each in wanted if each not in names]:
        choices = ", ".join(["nothing", *tasks])
        raise ValueError(f"unknown task {unknown[0]!r}; choose from {choices}")
    return [names[each] for each in wanted] or tasks


def fit(prompts: Sequence[Prompt], length: int) -> list[Prompt]:
    """Every prompt with exactly ``length`` tokens.

    A longer prompt loses its first tokens. In front of a shorter one the others of its task are
    put, in turn and repeatedly.
    """
    fitted = []
    for at, prompt in enumerate(prompts):
        others = [*prompts[at + 1 :], *prompts[: at + 1]]
        same = cycle(each.ids for each in others if each.task == prompt.task)
        ids = prompt.ids
        while len(ids) < length:
            ids = (*next(same), *ids)
        fitted.append(replace(prompt, ids=ids[-length:], length=length))
    return fitted


def unpredictable(
    prompts: Iterable[Prompt], tokens: int, vocab: int, never: Collection[int] = ()
) -> list[Prompt]:
    """The prompts of all tasks in turn, each with a different random text to generate."""
    by_task: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        by_task.setdefault(prompt.task, []).append(prompt)
    turns = chain.from_iterable(zip_longest(*by_task.values()))
    allowed = sorted(set(range(vocab)) - set(never))
    found: list[Prompt] = []
    for prompt in filter(None, turns):
        text = random.Random(len(found)).choices(allowed, k=tokens)
        name = f"{prompt.task} {prompt.id}"
        found.append(replace(prompt, task=NOTHING, id=name, text=tuple(text)))
    return found
