"""A generation step by step, for programs that do other things between steps."""

from __future__ import annotations

from typing import Any

from ngramspec.decoding.call import open_call
from ngramspec.decoding.joint_steps import Added, JointSteps
from ngramspec.decoding.open_generation import OpenGeneration
from ngramspec.decoding.request import GenerateCall
from ngramspec.errors import UnsupportedError
from ngramspec.hf import checked, checked_arguments
from ngramspec.hf_model.compat.hf_private import mark_as_made_by_generate
from ngramspec.speculator import Speculator

__all__ = ["Added", "JointSteps", "OpenGeneration", "open_generation"]


def open_generation(
    model: Any, *args: Any, speculator: Speculator | None = None, **kwargs: Any
) -> OpenGeneration:
    """Begin a generation of one sequence that the caller advances step by step.

    For programs that do other things between steps, such as a server with several users. The text
    is that of ``generate``. A cache that is passed as ``past_key_values`` is, after ``close``, cut
    to the tokens that were committed, so it can be passed again with a longer text.

    Args:
        model: a transformers model.
        *args: positional arguments of ``model.generate``.
        speculator: how to speculate; None: a new Speculator().
        **kwargs: keyword arguments of ``model.generate``, without stop_strings; and
            ``reference_ids``, ``stores`` and ``extra_stores``, see Speculator.__call__.

    Returns:
        the generation, before its prefill. Close it, or use it as a context manager.

    Raises:
        UnsupportedError: the request cannot be speculated.
        ValueError: there are several rows.

    Example:
        ``with open_generation(model, ids, max_new_tokens=64) as run: first = run.step()``
    """
    speculator = checked(speculator)
    args = checked_arguments(model, args, kwargs)
    own_cache = kwargs.get("past_key_values") is None
    opening = _Opening(speculator, kwargs.get("streamer"), own_cache)
    opened = model.generate(*args, **kwargs | {"custom_generate": opening})
    if not isinstance(opened, OpenGeneration):
        name = type(model).__name__
        raise UnsupportedError(f"the generate of {name} does not return what custom_generate does")
    return opened


class _Opening:
    """A ``custom_generate`` that begins a generation instead of running it."""

    def __init__(self, speculator: Speculator, streamer: Any, own_cache: bool) -> None:
        self.speculator, self.streamer, self.own_cache = speculator, streamer, own_cache

    def __call__(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        reference_ids: Any = None,
        stores: Any = None,
        extra_stores: Any = None,
        inputs_tensor: Any = None,
        generator: Any = None,
        **model_kwargs: Any,
    ) -> OpenGeneration:
        if self.own_cache and model_kwargs.get("past_key_values") is not None:
            mark_as_made_by_generate(model_kwargs["past_key_values"])
        if model_kwargs.get("use_cache", True) is None:
            model_kwargs["use_cache"] = True
        call = GenerateCall(
            model=model,
            input_ids=input_ids,
            config=generation_config,
            processors=logits_processor,
            criteria=stopping_criteria,
            streamer=self.streamer,
            reference_ids=reference_ids,
            stores=stores,
            extra_stores=extra_stores,
            encoded=inputs_tensor,
            generator=generator,
            synced_gpus=False,
            model_kwargs=model_kwargs,
        )
        return open_call(self.speculator.settings(), call)
