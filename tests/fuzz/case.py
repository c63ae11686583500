"""A case: one call of ``generate``, twice, described by plain values."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any

PROMPT = (5, 6, 7, 8, 5, 6, 7, 9, 5, 6)


@dataclass(frozen=True)
class Case:
    """Everything that is run; what is not given is as simple as can be.

    Attributes:
        seed: of sampling, drafters and processors.
        family, shape: the model, see ``models``.
        attention: "default": the class's own choice; or "sdpa", "eager".
        dtype: of the model.
        default_dtype: torch's, while it runs.
        prompts: token ids, one row each; shorter ones are padded on the left.
        mask: "padding": only what pads is masked; "left": two more pads in every row; "none": no
            mask is given; "holes": zeros inside prompts; "right": prompts are padded on the right.
        prompt_dtype: of the ids.
        inputs: "ids", "embeds", "embeds and ids" (beside ids of -200), "encoder outputs",
            "positions", "offset positions", "image", "decoder ids".
        cache: "own": what generate makes; "dynamic" or "static": a given, empty one; "begun": one
            that holds the prompt but its last tokens; "whole": one that holds all of the prompt.
        turns: how many calls, each after the text and cache of the one before.
        options: arguments of ``generate``.
        as_config: whether options are given as a GenerationConfig.
        processors, criteria: names of user's own, see ``watchers``.
        streamer: whether one is given; "raises": one that raises; "looks": see ``looks``.
        drafter: see ``drafters``.
        settings: other arguments of the Speculator.
        reference: text for drafters: "", "prompt", or "beyond": ids that the model does not know.
        swap: another drafter, set at the third step; or "".
        entry: "generate", "hook" (custom_generate=), "enabled", "overlapping" (two blocks of
            enable that end in the order they began), "generator" (a torch.Generator of its own),
            "stepwise" (open_generation, one row).
        mode: torch's inference mode: "" for none, "calls" in it, "inputs" made in it, "both", or
            "turns": the first turn's call outside and the second one's in it.
        steps: of "stepwise": "" in the mode of the opening, "outside", "inside", "mixed", or
            "joint": mixed, together with another generation that was opened in the other mode.
        hooks, offload: what was done to the model before, see ``users``.
        looks: whether the model is saved inside each forward, as another thread may do; the
            processors, criteria and streamers that look save it between forwards.
    """

    seed: int = 0
    family: str = "llama"
    shape: int = 0
    attention: str = "default"
    dtype: str = "float32"
    default_dtype: str = "float32"
    prompts: tuple[tuple[int, ...], ...] = (PROMPT,)
    mask: str = "padding"
    prompt_dtype: str = "int64"
    inputs: str = "ids"
    cache: str = "own"
    turns: int = 1
    options: dict[str, Any] = field(default_factory=lambda: {"max_new_tokens": 16})
    as_config: bool = False
    processors: tuple[str, ...] = ()
    criteria: tuple[str, ...] = ()
    streamer: bool | str = False
    drafter: str = "auto"
    settings: dict[str, Any] = field(default_factory=dict)
    reference: str = ""
    swap: str = ""
    entry: str = "generate"
    mode: str = ""
    steps: str = ""
    hooks: str = ""
    offload: str = ""
    looks: bool = False

    @property
    def samples(self) -> bool:
        return bool(self.options.get("do_sample"))

    @property
    def beams(self) -> int:
        return int(self.options.get("num_beams") or 1)

    @property
    def rows(self) -> int:
        return len(self.prompts) * int(self.options.get("num_return_sequences") or 1)

    def __repr__(self) -> str:
        default = Case()
        given = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)
            if getattr(self, each.name) != getattr(default, each.name)
        ]
        return f"Case({', '.join(given)})"


def simpler(case: Case) -> Iterator[Case]:
    """Cases that differ from ``case`` in one thing, which is simpler."""
    default = Case()
    order = [each.name for each in fields(case) if each.name not in ("prompts", "options")]
    for name in sorted(order, key=lambda each: each in ("seed", "shape", "family")):
        if getattr(case, name) != getattr(default, name):
            yield replace(case, **{name: getattr(default, name)})
    for name in ("settings", "options"):
        given = getattr(case, name)
        for key in given:
            if key != "max_new_tokens":
                rest = {each: value for each, value in given.items() if each != key}
                yield replace(case, **{name: rest})
    for name in ("processors", "criteria"):
        given = getattr(case, name)
        for at in range(len(given) if len(given) > 1 else 0):
            yield replace(case, **{name: given[:at] + given[at + 1 :]})
    yield from _shorter(case)


def _shorter(case: Case) -> Iterator[Case]:
    for at in range(len(case.prompts) if len(case.prompts) > 1 else 0):
        yield replace(case, prompts=case.prompts[:at] + case.prompts[at + 1 :])
    for at, prompt in enumerate(case.prompts):
        half = len(prompt) // 2
        for shorter in (PROMPT, prompt[half:], prompt[1:]):
            if len(shorter) > 0 and (len(shorter), shorter != PROMPT) < (len(prompt), True):
                yield replace(case, prompts=(*case.prompts[:at], shorter, *case.prompts[at + 1 :]))
    tokens = case.options.get("max_new_tokens", 16)
    for fewer in (tokens // 2, tokens - 1):
        if 0 < fewer < tokens:
            yield replace(case, options={**case.options, "max_new_tokens": fewer})
