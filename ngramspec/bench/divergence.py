"""Where speculative text first diverges from plain ``generate``'s, and how near a tie that was.

A forward over several positions rounds differently from one over a single position. So two logits
that are nearly equal may swap their order, and from there on the texts differ. A divergence where
the logits are further apart than rounding explains is an error.

The logits are those that plain ``generate`` chose by: of its own forward, over one new position
after its cache, after the processors, in float32 as ``generate`` has them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec import Speculator, generate
from ngramspec.draft import Int32

MOST_ULPS = 8.0  # between logits whose order rounding may change, in bfloat16 and float16
MOST_FLOAT32 = 1e-4  # the same in float32, as a difference


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token where two texts diverge.

    Attributes:
        token: which new token, counted from 1.
        plain, speculative: the ids there.
        gap: between plain ``generate``'s two best logits there.
        gap_ulps: the same in units in the last place of the model's dtype, see ``ulps_apart``.
        chosen_gap, chosen_ulps: between the best logit and that of the token which speculation
            has there; the same as ``gap`` where that is the second best, and more where not.
    """

    token: int
    plain: int
    speculative: int
    gap: float
    gap_ulps: float
    chosen_gap: float
    chosen_ulps: float

    def is_tie(self, dtype: torch.dtype) -> bool:
        """Whether rounding explains it: the logits of both tokens are near enough."""
        if dtype == torch.float32:
            return self.chosen_gap < MOST_FLOAT32
        return self.chosen_ulps <= MOST_ULPS


@dataclass(frozen=True, slots=True)
class Comparison:
    """One prompt's text, generated both ways.

    Attributes:
        name: the prompt's.
        tokens: new tokens before the first divergence, or all of them.
        divergence: the first divergence, or None.
    """

    name: str
    tokens: int
    divergence: Divergence | None


def compare(
    model: Any,
    speculator: Speculator,
    prompts: Sequence[tuple[str, Int32]],
    tokens: int,
    rows: int = 1,
) -> Iterator[Comparison]:
    """Continue prompts greedily both ways, in batches padded on the left.

    No end-of-sequence token ends a text: all have ``tokens`` new ones. For that the model's own
    generation config is changed.

    Args:
        model: a transformers model, decoder-only.
        speculator: how to speculate.
        prompts: names and token ids, int32 (n,).
        tokens: new ones for each prompt, >= 1.
        rows: prompts in a batch, >= 1.
    """
    model.generation_config.eos_token_id = None
    pad = model.generation_config.pad_token_id or 0
    for start in range(0, len(prompts), rows):
        chosen = prompts[start : start + rows]
        inputs = padded([ids for _, ids in chosen], pad, model.device)
        kwargs = {**inputs, "do_sample": False, "max_new_tokens": tokens, "pad_token_id": pad}
        plain = model.generate(**kwargs, return_dict_in_generate=True, output_scores=True)
        ours = generate(model, speculator=speculator, **kwargs)
        length = inputs["input_ids"].shape[1]
        for row, (name, _) in enumerate(chosen):
            mine, theirs = ours[row, length:].tolist(), plain.sequences[row, length:].tolist()
            same = common_prefix(mine, theirs)
            found = None
            if mine != theirs:
                scores = plain.scores[same][row]
                found = departure(same + 1, theirs[same], mine[same], scores, model.dtype)
            yield Comparison(name, same, found)


def padded(prompts: Sequence[Int32], pad: int, device: torch.device) -> dict[str, torch.Tensor]:
    """Prompts as ``input_ids`` and ``attention_mask``, int64 (rows, longest)."""
    longest = max(len(ids) for ids in prompts)
    input_ids = torch.full((len(prompts), longest), pad)
    mask = torch.zeros_like(input_ids)
    for row, ids in enumerate(prompts):
        input_ids[row, longest - len(ids) :] = torch.from_numpy(ids)
        mask[row, longest - len(ids) :] = 1
    return {"input_ids": input_ids.to(device), "attention_mask": mask.to(device)}


def departure(
    token: int, plain: int, speculative: int, scores: torch.Tensor, dtype: torch.dtype
) -> Divergence:
    """The divergence at new token ``token``, from plain ``generate``'s scores, float32 (vocab,)."""
    best, second = scores.topk(2).values.tolist()
    chosen = float(scores[speculative])
    return Divergence(
        token=token,
        plain=plain,
        speculative=speculative,
        gap=best - second,
        gap_ulps=ulps_apart(best, second, dtype),
        chosen_gap=best - chosen,
        chosen_ulps=ulps_apart(best, chosen, dtype),
    )


def ulps_apart(left: float, right: float, dtype: torch.dtype) -> float:
    """How far two numbers lie apart, in units in the last place of the larger in magnitude.

    That unit is the step from one number of the type to the next at that magnitude.

    Example:
        >>> ulps_apart(1.0, 1.015625, torch.bfloat16)
        2.0
    """
    apart = abs(left - right)
    return apart / ulp(max(abs(left), abs(right)), dtype) if math.isfinite(apart) else math.inf


def ulp(value: float, dtype: torch.dtype) -> float:
    """The step between numbers of a floating-point type at a finite number's magnitude."""
    kind = torch.finfo(dtype)
    exponent = math.frexp(max(abs(value), kind.tiny))[1] - 1  # 2**exponent <= value
    return math.ldexp(kind.eps, exponent)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens two sequences have in common from their start."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(left), len(right)))


def histogram(found: Sequence[Divergence]) -> dict[str, int]:
    """How many divergences lie in each range of ``gap_ulps``: 0, to 1, to 2, ..., to 8, more."""
    most = int(MOST_ULPS)
    counts = dict.fromkeys([*(str(unit) for unit in range(most + 1)), f">{most}"], 0)
    for each in found:
        unit = math.ceil(min(each.gap_ulps, most + 1))
        counts[str(unit) if unit <= most else f">{most}"] += 1
    return counts
