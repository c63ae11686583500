"""From a case to the arguments of a call of ``generate``; made anew for every call."""

from __future__ import annotations

import random
from typing import Any

import torch
from transformers import DynamicCache, GenerationConfig, StaticCache
from transformers.modeling_outputs import BaseModelOutput

from fuzz import models
from fuzz.case import Case
from fuzz.drawn_families import FAMILIES
from fuzz.watchers import Criterion, Log, Processor, Streamer
from ngramspec.hf_model.compat.caches import cache_argument, cache_of

IMAGE_IDS = 4  # of each image


def arguments(case: Case, model: Any, log: Log) -> dict[str, Any]:
    """The keyword arguments of the first turn's call."""
    ids, mask = _ids(case, model)
    kwargs: dict[str, Any] = {"input_ids": ids}
    if case.mask != "none":
        kwargs["attention_mask"] = mask
    _other_inputs(case, model, kwargs, ids, mask)
    _given_cache(case, model, kwargs, ids, mask)
    if not case.as_config:
        kwargs |= case.options
    else:
        kwargs["generation_config"] = GenerationConfig(**case.options)
    kwargs |= _watchers(case, log)
    return kwargs


def next_turn(case: Case, before: Any, kwargs: dict[str, Any], log: Log) -> dict[str, Any]:
    """The arguments of a call after what another one returned, and three more tokens."""
    more = torch.tensor([[9, 5, 6]]).expand(len(before.sequences), -1)
    ids = torch.cat((before.sequences, more.to(before.sequences.dtype)), dim=1)
    mask = torch.ones_like(ids)
    own = kwargs.get("attention_mask")
    if own is not None and own.shape[0] in (1, len(ids)) and own.shape[1] <= ids.shape[1]:
        mask[:, : own.shape[1]] = own
    options = {each: v for each, v in case.options.items() if each != "num_return_sequences"}
    if options.pop("cache_implementation", None):  # generate rejects it together with a cache
        said = len(before.sequences[0]) - max(len(each) for each in case.prompts)
        room = options["max_new_tokens"] - said - more.shape[1]  # of static full attention
        options["max_new_tokens"] = max(1, room)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        **cache_argument(cache_of(before)),
        **options,
        **_watchers(case, log),
    }


def _ids(case: Case, model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask, (batch, longest)."""
    prompts = [list(each) for each in case.prompts]
    if case.inputs == "image" and models.images_of(case.family) == "slots":
        slot = FAMILIES[case.family].settings["image_token_index"]
        prompts = [[each[0], *[slot] * IMAGE_IDS, *each[1:]] for each in prompts]
    longest = max(len(each) for each in prompts) + (2 if case.mask == "left" else 0)
    ids, mask = [], []
    for prompt in prompts:
        fill = longest - len(prompt)
        before = 0 if case.mask == "right" else fill
        ids.append([0] * before + prompt + [0] * (fill - before))
        mask.append([0] * before + [1] * len(prompt) + [0] * (fill - before))
        if case.mask == "holes" and len(prompt) > 3:
            mask[-1][before + 1] = mask[-1][before + 2] = 0
    return torch.tensor(ids, dtype=getattr(torch, case.prompt_dtype)), torch.tensor(mask)


def _other_inputs(
    case: Case, model: Any, kwargs: dict[str, Any], ids: torch.Tensor, mask: torch.Tensor
) -> None:
    """What stands in place of the ids, or beside them."""
    rows, length = ids.shape
    with torch.no_grad():
        if case.inputs in ("embeds", "embeds and ids"):
            kwargs["inputs_embeds"] = model.get_input_embeddings()(ids)
            del kwargs["input_ids"]
            if case.inputs == "embeds and ids":
                kwargs["input_ids"] = torch.full_like(ids, -200)
        elif case.inputs == "encoder outputs":
            states = model.get_encoder()(ids, attention_mask=mask, return_dict=True)
            kwargs["encoder_outputs"] = BaseModelOutput(states.last_hidden_state)
            del kwargs["input_ids"]
    if case.inputs == "decoder ids":
        kwargs["decoder_input_ids"] = torch.tensor([[2, 5, 6, 5, 6]]).expand(rows, -1)
    elif case.inputs in ("positions", "offset positions"):
        first = 0 if case.inputs == "positions" else 15
        kwargs["position_ids"] = (first + torch.arange(length))[None].expand(rows, -1)
    elif case.inputs == "image":
        torch.manual_seed(case.seed)
        dtype = getattr(torch, case.dtype)
        kwargs["pixel_values"] = torch.randn(rows, 3, 16, 16, dtype=torch.float32).to(dtype)
        if "Gemma3" in type(model).__name__:
            slot = FAMILIES[case.family].settings["image_token_index"]
            kwargs["token_type_ids"] = (ids == slot).long()


def _given_cache(
    case: Case, model: Any, kwargs: dict[str, Any], ids: torch.Tensor, mask: torch.Tensor
) -> None:
    if case.cache == "own":
        return
    if case.cache == "static":
        room = (
            ids.shape[1] + case.options["max_new_tokens"] + random.Random(case.seed).choice((0, 30))
        )
        kwargs |= cache_argument(StaticCache(config=model.config, max_cache_len=room))
        return
    cache = DynamicCache(config=model.config)
    kwargs |= cache_argument(cache)
    known = {"dynamic": 0, "begun": ids.shape[1] - 2, "whole": ids.shape[1]}[case.cache]
    if known > 0 and "input_ids" in kwargs:
        with torch.no_grad():
            places = (mask.cumsum(-1) - 1).clamp(min=0)[:, :known]
            model(
                input_ids=ids[:, :known],
                attention_mask=mask[:, :known],
                **cache_argument(cache),
                use_cache=True,
                **({} if case.family in NO_PLACES else {"position_ids": places}),
            )


NO_PLACES = ("bloom", "mpt", "falcon alibi")  # models without positions to be told


def _watchers(case: Case, log: Log) -> dict[str, Any]:
    from transformers import LogitsProcessorList, StoppingCriteriaList

    own: dict[str, Any] = {}
    if case.processors:
        made = [Processor(each, case.seed, log) for each in case.processors]
        own["logits_processor"] = LogitsProcessorList(made)
    if case.criteria:
        own["stopping_criteria"] = StoppingCriteriaList(
            [Criterion(each, case.seed, log) for each in case.criteria]
        )
    if case.streamer:
        at = random.Random(f"streamer {case.seed}").randrange(1, 14)
        last = at if case.streamer == "raises" else None
        own["streamer"] = Streamer(log, last, looks=case.streamer == "looks")
    return own
