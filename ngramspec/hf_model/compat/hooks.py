"""Forward hooks of ngramspec on modules of a model: registered once, and not removed.

Hooks that were registered for one forward could be seen, copied or pickled by other threads during
that forward. So a hook stays, and looks at its own thread's forward, in which it may do nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

_lock = threading.Lock()


class Hook:
    """A hook that calls ``act``; copies and pickles of its module have one that does nothing.

    These can be loaded without ngramspec.
    """

    def __init__(self, act: Callable[..., Any]) -> None:
        self.act = act

    def __call__(self, *given: Any) -> Any:
        return None if torch.compiler.is_compiling() else self.act(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


def is_ours(hook: Any) -> bool:
    """Whether a hook of a module is a ``Hook``, or what a copy or a pickle has in its place."""
    return isinstance(hook, Hook) or isinstance(getattr(hook, "__self__", None), nullcontext)


def call_before(module: Any, act: Callable[[Any, Any, Any], Any]) -> None:
    """Have ``act(module, args, kwargs)`` called before every forward of a module."""
    with _lock:
        if not _registered(module._forward_pre_hooks, act):
            module.register_forward_pre_hook(Hook(act), with_kwargs=True)


def call_after(module: Any, act: Callable[[Any, Any, Any], Any]) -> None:
    """Have ``act(module, args, output)`` called after every forward of a module."""
    with _lock:
        if not _registered(module._forward_hooks, act):
            module.register_forward_hook(Hook(act))


def _registered(hooks: dict[int, Any], act: Callable[..., Any]) -> bool:
    return any(isinstance(each, Hook) and each.act is act for each in hooks.values())
