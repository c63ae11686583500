"""Forward hooks on modules of a model: those of others, and ngramspec's, which are not removed.

Hooks that were registered for one forward could be seen, copied or pickled by other threads during
that forward. So a hook stays, and looks at its own thread's forward, in which it may do nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from ngramspec.hf_model.compat.package import captures_states

# Libraries whose forward hooks treat all positions alike.
POSITIONWISE = ("accelerate.", "peft.", "torch.")

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


def hooked_modules(model: Any) -> Iterator[tuple[str, bool]]:
    """Return the names of modules with forward hooks, and of attentions with a replaced forward.

    These may rely on every row of the batch, as adapters that are chosen by row do
    (``adapter_names`` of PEFT), or on the number of positions, as code that compresses the cache of
    a prompt does. The bool is whether they are known to treat all positions alike. ngramspec's own
    hooks do not count, nor do those with which transformers captures states, which do nothing in
    calls that ask for none.
    """
    for name, module in model.named_modules():
        hooks = (*module._forward_pre_hooks.values(), *module._forward_hooks.values())
        for hook in hooks:
            if not (is_ours(hook) or captures_states(hook)):
                yield name, _treats_positions_alike(hook)
        if _has_replaced_forward(module):
            yield name, False


def _treats_positions_alike(hook: Any) -> bool:
    """Whether a hook's function is of a library whose hooks do not count a forward's positions."""
    function = getattr(hook, "func", hook)  # of a functools.partial
    return str(getattr(function, "__module__", "")).startswith(POSITIONWISE)


def _has_replaced_forward(module: Any) -> bool:
    """Whether an attention module has another ``forward`` than its class.

    That of accelerate, which loads weights, and a compiled one do not count.
    """
    if "Attention" not in type(module).__name__:
        return False
    own = vars(module).get("_old_forward" if "_hf_hook" in vars(module) else "forward")
    own = getattr(own, "_torchdynamo_orig_callable", own)
    return own is not None and getattr(own, "__func__", own) is not type(module).forward
