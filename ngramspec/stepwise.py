"""Generation step by step, for programs that do other work between steps."""

from __future__ import annotations

from typing import Any

from ngramspec.decoding.joint import Added, JointSteps, OpenGeneration, opened
from ngramspec.errors import UnsupportedError
from ngramspec.hf import checked, run_in_hook
from ngramspec.speculator import Speculator

__all__ = ["Added", "JointSteps", "OpenGeneration", "open_generation"]


def open_generation(
    model: Any, *args: Any, speculator: Speculator | None = None, **kwargs: Any
) -> OpenGeneration:
    """Begin a generation of one sequence that the caller advances step by step.

    This is for programs that do other work between steps, such as a server with several users. The
    text is that of ``generate``. After ``close``, a cache that was passed as an argument holds only
    committed tokens, so it can be passed again with a longer text. All steps run in the
    inference mode (torch.inference_mode) that is active when this function is called. So they may
    be called in another mode or in another thread.

    Args:
        model: a transformers model.
        *args: positional arguments of ``model.generate``.
        speculator: how to speculate; None: a new Speculator().
        **kwargs: keyword arguments of ``model.generate``, and ``reference_ids``, ``stores``,
            ``extra_stores`` and ``session``, see Speculator.__call__.

    Returns:
        The generation, before its prefill. Close it, or use it as a context manager.

    Raises:
        UnsupportedError: the request does not support speculation.
        ValueError: there are several rows.

    Example:
        ``with open_generation(model, ids, max_new_tokens=64) as run: first = run.step()``
    """
    speculator = checked(speculator)
    found = run_in_hook(model, model.generate, opened, speculator, args, kwargs)
    if not isinstance(found, OpenGeneration):
        name = type(model).__name__
        raise UnsupportedError(
            f"the generate of {name} does not return the result of custom_generate"
        )
    return found
