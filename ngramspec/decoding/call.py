"""One call of ``generate``, from its arguments to its return value."""

from __future__ import annotations

import logging
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from ngramspec.decoding.generation import Generation
from ngramspec.decoding.loop import decode
from ngramspec.decoding.request import GenerateCall
from ngramspec.decoding.setup import Settings, make_run, make_target
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.cache.kv_cache import cache_of
from ngramspec.hf_model.compat.layers import layers_restored
from ngramspec.hf_model.model import Target
from ngramspec.hf_model.support import (
    check_adapter,
    check_prompt,
    check_request,
    drops_out,
    plain_method,
)

if TYPE_CHECKING:
    from ngramspec.decoding.distributed import Ranks

logger = logging.getLogger("ngramspec")


def decode_call(settings: Settings, call: GenerateCall) -> Any:
    """Decode with speculation, or handle an unsupported request as ``unsupported`` says.

    Returns:
        int64 (batch, prompt + generated), or a ModelOutput with return_dict_in_generate.

    Raises:
        UnsupportedError: the request does not support speculation, and unsupported="error".
        ValueError: the prompt is empty or has ids outside the vocabulary.
    """
    ranks = None
    try:
        if call.synced_gpus or (dist.is_available() and dist.is_initialized()):
            from ngramspec.decoding.distributed import ranks_of  # most calls have one process

            ranks = ranks_of(call.model, call.input_ids.device, call.synced_gpus)
        target = checked_target(settings, ranks, call)
    except UnsupportedError as error:
        synced = ranks is not None and ranks.synced
        return _decode_without_speculation(settings, call, error, synced_gpus=synced)
    run = checked_run(settings, ranks, target, call)
    try:
        sequences = decode(run)
    finally:
        settings.count(run.stats)
    sampler = run.sampler
    ranking = run.batch.ranking(scores=sampler.scores is not None)
    output = target.output(sequences, sampler.scores, sampler.logits, ranking)
    logger.info(
        "%d tokens in %d target calls after the prefill: %.2f per call",
        run.stats.emitted,
        run.stats.target_calls,
        run.stats.tokens_per_call,
    )
    if call.streamer is not None:
        call.streamer.end()
    return output


def checked_target(settings: Settings, ranks: Ranks | None, call: GenerateCall) -> Target:
    """The target of a call; an UnsupportedError if the call does not support speculation."""
    check_request(call.generation_config)
    _check_beams(settings, call)
    check_adapter(call.model)
    drafter = settings.drafter()
    if drafter.assistants:
        from ngramspec.decoding.assistants import Assistants  # most drafters have none

        Assistants(call.model, drafter)  # checks them
    with layers_restored(cache_of(call.model_kwargs)):
        return make_target(settings.config, ranks, call)


def checked_run(
    settings: Settings, ranks: Ranks | None, target: Target, call: GenerateCall
) -> Generation:
    """The run that decodes a call; a ValueError if its prompt is invalid."""
    check_prompt(call.model, call.input_ids, call.model_kwargs)
    if drops_out(call.model):
        settings.log_once(
            "the model is in training mode, where dropout changes every forward and so the"
            " text, with and without speculation; call model.eval()"
        )
    return make_run(settings, ranks, target, call)


def _check_beams(settings: Settings, call: GenerateCall) -> None:
    """Raise an UnsupportedError if beam search is combined with an option that excludes it."""
    beams = call.beams
    if beams == 1:
        return
    if call.streamer is not None:
        raise UnsupportedError(
            f"streamer cannot be used with num_beams={beams}, which selects no token before the"
            " end; pass streamer=None or num_beams=1"
        )
    if not settings.rule(False, None).exact:
        raise UnsupportedError(
            f"num_beams={beams} is not supported with lenience below 1 or verification='typical';"
            " pass num_beams=1, or remove them"
        )


def _decode_without_speculation(
    settings: Settings, call: GenerateCall, error: UnsupportedError, *, synced_gpus: bool
) -> Any:
    """Let transformers decode the call, or raise if that is not wanted or not possible."""
    method = plain_method(call.generation_config)
    if settings.config.unsupported == "error" or method is None:
        raise error
    plain = getattr(type(call.model), method)
    own = {"streamer": call.streamer, "generator": call.generator}
    given = {name: value for name, value in own.items() if value is not None}
    for name in given:
        if name not in signature(plain).parameters:
            raise UnsupportedError(f"{name} cannot be used here: {error}") from error
    settings.log_once(f"decoding without speculation: {error}")
    return plain(
        call.model,
        call.input_ids,
        logits_processor=call.logits_processor,
        stopping_criteria=call.stopping_criteria,
        generation_config=call.generation_config,
        synced_gpus=synced_gpus,
        **given,
        **call.model_kwargs,
    )
