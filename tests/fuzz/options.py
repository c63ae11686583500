"""Draws a case from its seed."""

from __future__ import annotations

import random
from typing import Any

from fuzz import drafters, models, users, watchers
from fuzz.case import PROMPT, Case
from fuzz.drawn_families import VOCAB

PADS = (0, 0, 60, None, -1, VOCAB)
# name -> how a value is drawn; those of sampling, and those of both ways.
WARPERS = {
    "temperature": lambda rng: rng.choice((0.3, 0.7, 1.0, 1.5, 3.0)),
    "top_k": lambda rng: rng.choice((0, 1, 3, 10, 200)),
    "top_p": lambda rng: rng.choice((0.1, 0.5, 0.9, 1.0)),
    "min_p": lambda rng: rng.choice((0.02, 0.2)),
    "typical_p": lambda rng: rng.choice((0.2, 0.9)),
    "top_h": lambda rng: rng.choice((0.3, 0.8)),
    "epsilon_cutoff": lambda rng: 0.01,
    "eta_cutoff": lambda rng: 0.01,
}
RULES = {
    "repetition_penalty": lambda rng: rng.choice((0.8, 1.3, 2.0)),
    "no_repeat_ngram_size": lambda rng: rng.choice((1, 2, 3)),
    "bad_words_ids": lambda rng: [[rng.randrange(VOCAB)], [5, 6], [7, 8, 9]],
    "suppress_tokens": lambda rng: rng.sample(range(VOCAB), 5),
    "begin_suppress_tokens": lambda rng: rng.sample(range(VOCAB), 20),
    "sequence_bias": lambda rng: [[[rng.randrange(VOCAB)], 4.0], [[5, 6], -3.0]],
    "forced_bos_token_id": lambda rng: rng.randrange(VOCAB),
    "forced_eos_token_id": lambda rng: rng.randrange(VOCAB),
    "encoder_repetition_penalty": lambda rng: rng.choice((0.7, 1.4)),
    "encoder_no_repeat_ngram_size": lambda rng: rng.choice((1, 2)),
    "exponential_decay_length_penalty": lambda rng: (rng.randrange(1, 6), 1.3),
    "remove_invalid_values": lambda rng: True,
    "renormalize_logits": lambda rng: True,
    "min_new_tokens": lambda rng: rng.randrange(1, 12),
    "min_length": lambda rng: rng.randrange(5, 25),
    "guidance_scale": lambda rng: rng.choice((1.5, 0.7)),
    "watermarking_config": lambda rng: {
        "bias": 2.5,
        "greenlist_ratio": 0.25,
        "seeding_scheme": "lefthash",
    },
    "prefill_chunk_size": lambda rng: rng.choice((1, 3, 4)),
    "use_cache": lambda rng: rng.choice((True, True, None, False)),
    "num_beams": lambda rng: rng.choice((1, 2, 3, 4)),
    "disable_compile": lambda rng: True,
    "low_memory": lambda rng: True,
}
CACHES = ("static", "static", "static", "dynamic", "offloaded_static", "hybrid", "offloaded")
MODES = ("calls", "inputs", "both", "turns")
RETURNED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def draw(seed: int) -> Case:
    """The case of a seed: the same in every process."""
    rng = random.Random(f"case {seed}")
    offload = _rare(rng, 0.03, users.OFFLOADS, "")
    often = offload and rng.random() < 0.5
    family = rng.choice(users.OFFLOADED) if often else models.draw_family(rng)
    prompts = _prompts(rng)
    options = _options(rng)
    case: dict[str, Any] = {
        "seed": seed,
        "family": family,
        "shape": rng.randrange(models.SHAPES),
        "attention": rng.choice(("default", "default", "eager")),
        "dtype": rng.choices(("float32", "bfloat16", "float16"), (20, 1, 1))[0],
        "default_dtype": _rare(rng, 0.05, ("bfloat16", "float16", "float64"), "float32"),
        "prompts": prompts,
        "mask": _rare(rng, 0.15, ("none", "left", "holes", "right"), "padding"),
        "prompt_dtype": _rare(rng, 0.03, ("int32",), "int64"),
        "inputs": _inputs(rng, family),
        "as_config": rng.random() < 0.15,
        "streamer": rng.choices((False, True, "raises", "looks"), (84, 12, 3, 1))[0],
        "processors": _some(rng, 0.15, watchers.PROCESSORS),
        "criteria": _some(rng, 0.12, watchers.CRITERIA),
        "reference": _rare(rng, 0.08, ("prompt", "beyond"), ""),
        "entry": rng.choices(
            ("generate", "hook", "enabled", "overlapping", "generator", "stepwise"),
            (50, 18, 10, 2, 6, 14),
        )[0],
        "mode": _rare(rng, 0.25, MODES, ""),
        "hooks": _rare(rng, 0.03, users.HOOKS, ""),
        "offload": offload,
        "looks": rng.random() < 0.03,
    }
    if case["entry"] == "stepwise":
        _draw_steps(rng, case, options)
    case["drafter"], case["settings"], case["swap"] = drafters.draw(rng)
    if not models.encodes(family) and not models.images_of(family):
        case["cache"] = _rare(rng, 0.16, ("dynamic", "static", "begun", "whole"), "own")
    again = rng.random() < 0.4 and case["inputs"] == "ids"  # embeddings are not of the text
    if "return_dict_in_generate" in options and again:
        case["turns"] = 2
    if case["hooks"] in users.COMPRESSING:
        long = [(each * users.LONG)[: users.LONG + min(len(each), 12)] for each in case["prompts"]]
        case["prompts"] = tuple(long)  # little padding, so that each row keeps some keys
        case["settings"].pop("gamma_max", None)  # 200 would be as long
    if case.get("cache", "own") != "own" or case["hooks"] in users.COMPRESSING:
        options.pop("cache_implementation", None)
    if case["entry"] == "hook" and case["streamer"]:
        case["streamer"] = False  # transformers does not pass it on
    return Case(options=options, **case)


def _draw_steps(rng: random.Random, case: dict[str, Any], options: dict[str, Any]) -> None:
    """A case of one row, and of what a generation tells of itself between its steps."""
    case["steps"] = rng.choice(("", "outside", "inside", "mixed", "mixed", "joint", "joint"))
    case["prompts"] = case["prompts"][:1]
    beams = ("num_beams", "num_return_sequences", "length_penalty", "early_stopping")
    for name in (*beams, "return_dict_in_generate", *RETURNED):
        options.pop(name, None)


def _prompts(rng: random.Random) -> tuple[tuple[int, ...], ...]:
    count = rng.choices((1, 2, 3, 4), (60, 22, 10, 8))[0]
    return tuple(_prompt(rng) for _ in range(count))


def _prompt(rng: random.Random) -> tuple[int, ...]:
    kind = rng.randrange(4)
    if kind == 0:
        return PROMPT
    length = rng.choice((1, 2, 5, 8, 12, 12, 20, 30))
    if kind == 1:
        period = [rng.randrange(3, VOCAB - 4) for _ in range(rng.randrange(1, 6))]
        return tuple((period * length)[:length])
    return tuple(rng.randrange(3, VOCAB - 4) for _ in range(length))


def _options(rng: random.Random) -> dict[str, Any]:
    options: dict[str, Any] = {"max_new_tokens": rng.choice((1, 2, 8, 16, 16, 24, 24, 40))}
    if rng.random() < 0.35:
        options["do_sample"] = True
        for name in rng.sample([*WARPERS], rng.choice((0, 1, 1, 2, 3))):
            options[name] = WARPERS[name](rng)
    for name in rng.sample([*RULES], rng.choice((0, 0, 0, 1, 1, 2, 3))):
        options[name] = RULES[name](rng)
    if "exponential_decay_length_penalty" in options or "min_length" in options:
        options["eos_token_id"] = rng.randrange(VOCAB)  # plain needs one for them
    elif rng.random() < 0.4:
        eos = rng.sample(range(VOCAB), rng.choice((1, 3, 6)))
        options["eos_token_id"] = eos if len(eos) > 1 else eos[0]
        options["pad_token_id"] = rng.choice(PADS)
    if rng.random() < (0.25 if "do_sample" in options else 0.01):  # plain greedy has none
        options["num_return_sequences"] = rng.choice((2, 3))
    if rng.random() < 0.06:
        options["num_beams"] = rng.choice((2, 3, 4))
    if options.get("num_beams", 1) > 1:
        _draw_beams(rng, options)
    if rng.random() < 0.2:
        options["cache_implementation"] = rng.choice(CACHES)
    if rng.random() < 0.35:
        options["return_dict_in_generate"] = True
        for name in RETURNED:
            if rng.random() < 0.3:
                options[name] = True
    return options


def _draw_beams(rng: random.Random, options: dict[str, Any]) -> None:
    """Settings of a beam search, which is mostly not a sampled one."""
    if rng.random() < 0.9:
        for name in ("do_sample", *WARPERS):
            options.pop(name, None)
    if rng.random() < 0.5:
        options["length_penalty"] = rng.choice((-1.0, 0.0, 0.6, 2.0))
    if rng.random() < 0.5:
        options["early_stopping"] = rng.choice((True, "never"))
    if rng.random() < 0.4:
        options["num_return_sequences"] = rng.randint(1, options["num_beams"])


def _inputs(rng: random.Random, family: str) -> str:
    if models.images_of(family):
        return rng.choice(("image", "image", "ids"))
    if models.encodes(family):
        return _rare(rng, 0.25, ("encoder outputs", "decoder ids", "embeds"), "ids")
    ways = ("embeds", "embeds and ids", "positions", "offset positions")
    return _rare(rng, 0.15, ways, "ids")


def _rare(rng: random.Random, chance: float, values: tuple[str, ...], usual: str) -> str:
    return rng.choice(values) if rng.random() < chance else usual


def _some(rng: random.Random, chance: float, values: tuple[str, ...]) -> tuple[str, ...]:
    if rng.random() >= chance:
        return ()
    return tuple(rng.sample(values, rng.choice((1, 1, 2))))
