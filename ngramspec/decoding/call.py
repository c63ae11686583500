"""One call of ``generate``, from its arguments to its return value."""

from __future__ import annotations

import logging
from inspect import signature
from typing import Any

import torch.distributed as dist

from ngramspec.decoding.loop import decode
from ngramspec.decoding.request import GenerateCall
from ngramspec.decoding.setup import CallSetup, Settings
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.support import plain_method

logger = logging.getLogger("ngramspec")


def decode_call(settings: Settings, call: GenerateCall) -> Any:
    """Decode with speculation, or handle an unsupported request as ``unsupported`` says.

    The result and the errors are those of ``Speculator.__call__``.
    """
    ranks = None
    try:
        if call.synced_gpus or (dist.is_available() and dist.is_initialized()):
            from ngramspec.decoding.distributed import ranks_of  # most calls have one process

            ranks = ranks_of(call.model, call.input_ids.device, call.synced_gpus)
        setup = CallSetup(settings, call, ranks)
    except UnsupportedError as error:
        method = plain_method(call.generation_config)
        if settings.config.unsupported == "error" or method is None:
            raise
        synced = ranks is not None and ranks.synced
        return _decode_without_speculation(settings, call, method, str(error), synced_gpus=synced)
    loop = setup.loop()
    try:
        sequences = decode(loop)
    finally:
        settings.count(setup.stats)
    sampler = loop.sampler
    ranking = loop.batch.ranking(scores=sampler.scores is not None)
    output = setup.target.output(sequences, sampler.scores, sampler.logits, ranking)
    logger.info(
        "%d tokens in %d target calls after the prefill: %.2f per call",
        setup.stats.emitted,
        setup.stats.target_calls,
        setup.stats.tokens_per_call,
    )
    if call.streamer is not None:
        call.streamer.end()
    return output


def _decode_without_speculation(
    settings: Settings, call: GenerateCall, method: str, reason: str, *, synced_gpus: bool
) -> Any:
    """Let the baseline's ``method`` decode the call, or raise if that is not possible.

    ``reason`` says why the call is unsupported. The error itself is not passed, because a frame
    that holds an error in whose traceback it is would keep the call's cache alive.
    """
    plain = getattr(type(call.model), method)
    own = {"streamer": call.streamer, "generator": call.generator}
    given = {name: value for name, value in own.items() if value is not None}
    for name in given:
        if name not in signature(plain).parameters:
            raise UnsupportedError(f"{name} cannot be used here: {reason}")
    settings.log_once(f"decoding without speculation: {reason}")
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
