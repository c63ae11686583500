"""Calls that run as the baseline, and the check of a transformers older or newer than those tested.

Before the first call under such a version, a small random Llama decodes a few tokens, with drafts
of which parts are wrong. The text must be the baseline's.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from inspect import signature
from typing import Any

import torch

from ngramspec.costs.policies import PrefillDraftLength
from ngramspec.decoding.request import Request
from ngramspec.drafters.known import OracleDrafter
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.configs import plain_method
from ngramspec.hf_model.compat.devices import is_transient
from ngramspec.hf_model.compat.factories import small_model
from ngramspec.hf_model.compat.package import NEWEST_TESTED, OLDEST_SUPPORTED, before, untested
from ngramspec.options import Options
from ngramspec.stats import PLAIN, DecodeStats

logger = logging.getLogger("ngramspec")

Decode = Callable[[Request], Any]

VOCAB = 61
PROMPT = (5, 6, 7, 8, 5, 6, 7, 9)
NEW_TOKENS = 12
GAMMA = 4
RIGHT = 2  # tokens at most of each draft that are right; the others are rejected

_found: dict[str, str | None] = {}  # by version, why it cannot be speculated with
_lock = threading.Lock()


def fault_of(version: str, decode: Decode) -> str | None:
    """Why calls under a version of transformers run as the baseline; None: the check has passed.

    The check runs once in a process, or again if there was no memory for it. If it fails, this is
    logged as a warning, and so is an older version with which it passes.
    """
    with _lock:
        if version in _found:
            return _found[version]
        try:
            with torch.autocast("cpu", enabled=False):
                reason = _compare(small_model(VOCAB), decode)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            if is_transient(error):
                return reason
        _found[version] = None if reason is None else _message(version, reason)
        if reason is not None:
            logger.warning("%s: %s", PLAIN, _found[version])
        elif before(OLDEST_SUPPORTED):
            logger.warning("transformers %s is untested; upgrade it (%s)", version, SUPPORTED)
        return _found[version]


SUPPORTED = f"transformers>={OLDEST_SUPPORTED}"


def _message(version: str, reason: str) -> str:
    if before(OLDEST_SUPPORTED):
        return f"ngramspec needs {SUPPORTED}, got {version} ({reason}); upgrade transformers"
    return (
        f"ngramspec does not work with transformers {version}, which is newer than the newest that"
        f" it was tested with ({reason}); upgrade ngramspec, or install"
        f" transformers=={NEWEST_TESTED}"
    )


def _compare(model: Any, decode: Decode) -> str | None:
    """Why a model's text with drafts is not the baseline's; None: it is."""
    ids, stats, said = torch.tensor([PROMPT], device="cpu"), DecodeStats(), list[str]()
    asked = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW_TOKENS}
    asked |= {"do_sample": False, "num_beams": 1}
    plain = model.generate(ids, **asked)
    text = plain[0].tolist()
    wrong = [(token + 1) % VOCAB for token in text]
    ends = range(len(PROMPT) + RIGHT, len(text), RIGHT)
    drafter = OracleDrafter([text[:end] + wrong[end:] for end in ends])

    def hook(model: Any, input_ids: torch.Tensor, **given: Any) -> Any:
        prepared = ("logits_processor", "stopping_criteria", "generation_config")
        own = {name: given.pop(name, None) for name in prepared}
        request = Request(
            model=model,
            input_ids=input_ids,
            **own,
            model_kwargs=given,
            options=Options(gamma=GAMMA, tree=None, compiled=False),
            drafter=lambda: drafter,
            prefill_length=PrefillDraftLength(GAMMA),
            count=stats.add,
            log_once=said.append,
        )
        return decode(request)

    ours = model.generate(ids, custom_generate=hook, **asked)
    if not torch.equal(plain, ours):
        return "a rejected draft changes the text"
    if said or not stats.accepted or stats.accepted == stats.drafted:
        return "; ".join(said) or "no draft was verified"
    return None


def why_plain(request: Request, error: Exception) -> str | None:
    """Why the baseline may decode a call that failed with an error; None: it may not."""
    if isinstance(error, UnsupportedError):
        return None if request.unsupported == "error" else str(error)
    version = untested()
    if version is None:
        return None
    return f"{type(error).__name__} under transformers {version}: {error}"


def decode_plainly(
    request: Request,
    reason: str,
    *,
    synced_gpus: bool,
    log: Callable[[str], None] | None = None,
) -> Any:
    """Let the baseline decode the call; an UnsupportedError says that it cannot.

    The error itself is not passed, only the ``reason``: a frame that holds an error in whose
    traceback it is would keep the call's cache alive.
    """
    method = plain_method(request.generation_config)
    if method is None:
        raise UnsupportedError(reason)
    plain = getattr(type(request.model), method)
    own = {"streamer": request.streamer, "generator": request.generator}
    given = {name: value for name, value in own.items() if value is not None}
    for name in given:
        if name not in signature(plain).parameters:
            raise UnsupportedError(f"{name} cannot be used here: {reason}")
    limit = f"{PLAIN}: {reason}"
    if log is not None:
        log(limit)
    request.count(DecodeStats(limits={limit: 1}))
    return plain(
        request.model,
        request.input_ids,
        logits_processor=request.logits_processor,
        stopping_criteria=request.stopping_criteria,
        generation_config=request.generation_config,
        synced_gpus=synced_gpus,
        **given,
        **request.model_kwargs,
    )
