"""Test whether a model's joint forward gives each text the logits of a separate forward.

A model may mix positions outside its attention, or attend to other states than its cache returns.
This is tested with a few short texts at the first use of a model, as in ``recurrent_probe``.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any
from weakref import WeakKeyDictionary

import torch

from ngramspec.hf_model.attention.tree_attention import attended, tree_mask
from ngramspec.hf_model.attention.windows import windows_of
from ngramspec.hf_model.cache.kv_cache import kv_cache_for
from ngramspec.hf_model.compat.cache_name import cache_argument
from ngramspec.hf_model.joint_forward import JointForward, Share, share_of
from ngramspec.hf_model.recurrent_probe import Found, alike, tested_once
from ngramspec.hf_model.traits import embedding_count

PROBE_TEXTS = ((6, 3), (3, 2), (4, 1))  # of each text, tokens in the cache and in the forward

_found: Found = WeakKeyDictionary()


def why_not_tried(model: Any) -> str | None:
    """Why a transformers model's forwards cannot be joined, by a test of it; None: they can.

    A model is tested once, with a few forwards over a few tokens.
    """
    return tested_once(model, _try, _found)


@torch.no_grad()
def _try(model: Any) -> str | None:
    try:
        shares = [_share(model, *sizes) for sizes in PROBE_TEXTS]
        alone = [_alone(model, share) for share in shares]
        together = [result.logits for result in JointForward(model, shares).run()]
    except Exception as error:
        return f"its joint forward failed: {error}"
    if alike(together, alone, model.dtype):
        return None
    return "its joint forward gives a text other logits than a separate forward"


def _share(model: Any, before: int, new: int) -> Share:
    """Return the share of a text with ``before`` tokens in its cache and ``new`` further ones."""
    from transformers import DynamicCache

    positions = torch.arange(before + new, device=model.device)[None]
    tokens = (positions * 7 + before) % (embedding_count(model) or 8)
    cache = DynamicCache(config=model.config)
    model(input_ids=tokens[:, :before], **cache_argument(cache), use_cache=True)
    ids, places = tokens[:, before:], positions[:, before:]
    inputs = {"input_ids": ids, "position_ids": places} | cache_argument(cache)
    windows = windows_of(model.config.get_text_config(decoder=True))
    if windows is not None and windows.known:
        mask = tree_mask(attended((), new, model.device), None, before, model.device)
        held = kv_cache_for(cache).windows.held
        held = None if held is None else held + new
        inputs["attention_mask"] = windows.masks(mask, positions[:, :before], places, held)
    return share_of(inputs, windows)


def _alone(model: Any, share: Share) -> torch.Tensor:
    """Return the logits of a separate forward, (1, n, vocab); the share's cache is not changed."""
    cache = deepcopy(share.cache)
    places = {"input_ids": share.ids, "position_ids": share.positions}
    logits: torch.Tensor = model(**cache_argument(cache), use_cache=True, **places).logits
    return logits
