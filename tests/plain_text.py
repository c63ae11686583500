"""A call with a Speculator, whose text must be that of plain ``generate``."""

from __future__ import annotations

import torch

import ngramspec

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])


def same_text(model, speculator, ids=PROMPT, *, seed=0, **kwargs):
    """Compare the ids of both calls, greedy ones by default, and return the statistics.

    Args:
        speculator: or a function that makes it of the plain call's first row, a list.
        ids: (batch, n), or None where ``kwargs`` hold the inputs.
        seed: of torch, set before each call.
    """
    if ids is not None:
        kwargs["input_ids"] = ids
    kwargs = {"do_sample": False} | kwargs
    torch.manual_seed(seed)
    plain = model.generate(**kwargs)
    if not isinstance(speculator, ngramspec.Speculator):
        speculator = speculator(plain[0].tolist())
    torch.manual_seed(seed)
    ours = ngramspec.generate(model, **kwargs, speculator=speculator)
    assert ours.tolist() == plain.tolist()
    return speculator.stats


def text_and_calls(ids, speculator, model, **kwargs):
    """The token ids of a call's first row, and the number of forward passes."""
    speculator.reset()
    output = ngramspec.generate(model, ids, speculator=speculator, **kwargs)
    return output[0].tolist(), speculator.stats.target_calls


def three_ways(model, *args, speculator, **kwargs):
    """The outputs of the hook, of ngramspec.generate and of enable, for the same arguments."""
    yield model.generate(*args, custom_generate=speculator, **kwargs)
    yield ngramspec.generate(model, *args, speculator=speculator, **kwargs)
    with ngramspec.enable(model, speculator):
        yield model.generate(*args, **kwargs)
    assert "generate" not in vars(model)
