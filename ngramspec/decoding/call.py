"""One call of ``generate``, from its arguments to its return value."""

from __future__ import annotations

import logging
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch.distributed as dist

from ngramspec.decoding.loop import decode
from ngramspec.decoding.request import GenerateCall
from ngramspec.decoding.setup import CallSetup, Settings
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.caches import given_cache, layers_restored
from ngramspec.hf_model.compat.names import plain_method
from ngramspec.hf_model.compat.versions import untested

logger = logging.getLogger("ngramspec")

# Errors of code that calls another version of transformers than it was written for.
BROKEN = (AttributeError, ImportError, LookupError, NotImplementedError, TypeError)


def version_fault() -> str | None:
    """Why calls under the installed transformers run as the baseline; None: they need not.

    The first call under an untested version checks it; see ``self_check``.
    """
    version = untested()
    if version is None:
        return None
    from ngramspec.decoding.self_check import fault_of

    return fault_of(version, _speculate)


def decode_call(settings: Settings, call: GenerateCall) -> Any:
    """Decode with speculation, or handle an unsupported request as ``unsupported`` says.

    The result and the errors are those of ``Speculator.__call__``.
    """
    fault = version_fault()
    if fault is None:
        return _speculate(settings, call)
    return _decode_plainly(call, fault, synced_gpus=bool(call.synced_gpus))


def _speculate(settings: Settings, call: GenerateCall) -> Any:
    """Decode with speculation. Until the prefill has run, a failure may become a plain call."""
    ranks = loop = None
    try:
        if call.synced_gpus or (dist.is_available() and dist.is_initialized()):
            from ngramspec.decoding.distributed import ranks_of  # most calls have one process

            ranks = ranks_of(call.model, call.input_ids.device, call.synced_gpus)
        with layers_restored(given_cache(call.model_kwargs)):
            setup = CallSetup(settings, call, ranks)
            loop = setup.loop()
            try:
                sequences = decode(loop)
            finally:
                settings.count(setup.stats)
    except (UnsupportedError, *BROKEN) as error:
        reason = _why_plain(settings, error)
        if reason is None or (loop is not None and loop.prefilled):
            raise
        if plain_method(call.generation_config) is None:
            raise
        synced = ranks is not None and ranks.synced
        return _decode_plainly(call, reason, synced_gpus=synced, log=settings.log_once)
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


def _why_plain(settings: Settings, error: Exception) -> str | None:
    """Why the baseline may decode a call that failed with an error; None: it may not."""
    if isinstance(error, UnsupportedError):
        return None if settings.config.unsupported == "error" else str(error)
    version = untested()
    if version is None:
        return None
    return f"{type(error).__name__} under transformers {version}: {error}"


def _decode_plainly(
    call: GenerateCall,
    reason: str,
    *,
    synced_gpus: bool,
    log: Callable[[str], None] | None = None,
) -> Any:
    """Let the baseline decode the call; an UnsupportedError says that it cannot.

    The error itself is not passed, only the ``reason``: a frame that holds an error in whose
    traceback it is would keep the call's cache alive.
    """
    method = plain_method(call.generation_config)
    if method is None:
        raise UnsupportedError(reason)
    plain = getattr(type(call.model), method)
    own = {"streamer": call.streamer, "generator": call.generator}
    given = {name: value for name, value in own.items() if value is not None}
    for name in given:
        if name not in signature(plain).parameters:
            raise UnsupportedError(f"{name} cannot be used here: {reason}")
    if log is not None:
        log(f"decoding without speculation: {reason}")
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
