"""A generation step by step, for programs that do other things between steps."""

from __future__ import annotations

from typing import Any

from ngramspec.decoding.joint_steps import Added, JointSteps
from ngramspec.decoding.open_generation import OpenGeneration, open_call
from ngramspec.errors import UnsupportedError
from ngramspec.hf import GenerateHook, checked, checked_arguments
from ngramspec.speculator import Speculator

__all__ = ["Added", "JointSteps", "OpenGeneration", "open_generation"]


def open_generation(
    model: Any, *args: Any, speculator: Speculator | None = None, **kwargs: Any
) -> OpenGeneration:
    """Begin a generation of one sequence that the caller advances step by step.

    For programs that do other things between steps, such as a server with several users. The text
    is that of ``generate``. A cache that is passed as ``past_key_values`` is, after ``close``, cut
    to the tokens that were committed, so it can be passed again with a longer text. The steps run
    in the inference mode (torch.inference_mode) in which this function is called, or outside of it.
    So they may be called in another mode, or in another thread.

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
    hook = GenerateHook(
        lambda call: open_call(speculator.settings(), call),
        own_cache=kwargs.get("past_key_values") is None,
        streamer=kwargs.get("streamer"),
        synced_gpus=False,
    )
    opened = model.generate(*args, **kwargs | {"custom_generate": hook})
    if not isinstance(opened, OpenGeneration):
        name = type(model).__name__
        raise UnsupportedError(f"the generate of {name} does not return what custom_generate does")
    return opened
