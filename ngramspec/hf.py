"""The transformers boundary: ``generate`` and ``enabled``, with nothing dropped on the way."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ngramspec.errors import UnsupportedError
from ngramspec.speculator import REMOTE, Speculator

REFUSED = ("assistant_model", "assistant_tokenizer")


class BoundSpeculator:
    """A Speculator with the arguments that transformers does not pass on to it."""

    def __init__(
        self,
        speculator: Speculator,
        streamer: Any,
        synced_gpus: bool | None = None,
        own_cache: bool = False,
    ) -> None:
        self.speculator = speculator
        self.streamer = streamer
        self.synced_gpus = synced_gpus
        self.own_cache = own_cache  # the caller brought none

    def __call__(
        self,
        model: Any,
        input_ids: Any,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        reference_ids: Any = None,
        inputs_tensor: Any = None,
        generator: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        cache = model_kwargs.get("past_key_values")
        if self.own_cache and cache is not None:
            cache._is_user_defined = False  # as later versions say of those that they made
        return self.speculator(
            model,
            input_ids,
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            generation_config=generation_config,
            streamer=self.streamer,
            reference_ids=reference_ids,
            inputs_tensor=inputs_tensor,
            generator=generator,
            synced_gpus=self.synced_gpus,
            **model_kwargs,
        )


def generate(
    model: Any,
    *args: Any,
    speculator: Speculator | None = None,
    tokenizer: Any = None,
    streamer: Any = None,
    **kwargs: Any,
) -> Any:
    """``model.generate`` with speculation; all its arguments, and what it returns.

    Unlike ``custom_generate=``, which transformers passes neither on, this takes a ``streamer``
    and ``stop_strings`` (with the ``tokenizer``).

    Args:
        model: a transformers model.
        args: positional arguments of ``model.generate``.
        speculator: how to speculate; None: a new Speculator().
        tokenizer: the model's tokenizer, needed for stop_strings.
        streamer: gets the prompt and then every token, one ``put`` each.
        kwargs: keyword arguments of ``model.generate``.

    Raises:
        UnsupportedError: an argument that cannot be combined with speculation, by name.

    Example:
        ``ngramspec.generate(model, **inputs, max_new_tokens=64, streamer=streamer)``
    """
    speculator = _speculator(speculator)
    if kwargs.get("custom_generate") is not None:
        raise ValueError("custom_generate cannot be combined with ngramspec.generate; remove it")
    with _ended(streamer):
        return _generate(model.generate, model, args, speculator, tokenizer, streamer, kwargs)


@contextmanager
def enabled(model: Any, speculator: Speculator | None = None) -> Iterator[Speculator]:
    """Make every ``model.generate`` inside the block speculative, pipelines' calls included.

    It replaces the ``generate`` of this one model object, for all threads, and puts back what was
    there. A call that brings its own ``custom_generate`` is left alone.

    Args:
        model: a transformers model.
        speculator: how to speculate; None: a new Speculator().

    Yields:
        The Speculator, for its ``stats`` and to swap its drafter.

    Example:
        ``with ngramspec.enabled(pipe.model): pipe("Once upon a time")``
    """
    speculator = _speculator(speculator)
    model = getattr(model, "_orig_mod", model)  # where a compiled model keeps its attributes
    plain = model.generate
    had_own = "generate" in vars(model)
    model.generate = speculative(model, plain, speculator)
    try:
        yield speculator
    finally:
        if had_own:
            model.generate = plain
        else:
            del model.generate


def speculative(
    model: Any, plain: Callable[..., Any], speculator: Speculator
) -> Callable[..., Any]:
    """What stands in for a model's ``generate``, here ``plain``, and speculates.

    A call that brings its own ``custom_generate`` goes to ``plain`` as it is.
    """

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("custom_generate") is not None:
            return plain(*args, **kwargs)
        tokenizer, streamer = kwargs.pop("tokenizer", None), kwargs.pop("streamer", None)
        with _ended(streamer):
            return _generate(plain, model, args, speculator, tokenizer, streamer, kwargs)

    return stand_in


def _speculator(given: Speculator | None) -> Speculator:
    if given is not None and not isinstance(given, Speculator):
        name = type(given).__name__
        raise TypeError(f"speculator must be a Speculator or None, got {name}")
    return Speculator() if given is None else given


def _generate(
    plain: Callable[..., Any],
    model: Any,
    args: tuple[Any, ...],
    speculator: Speculator,
    tokenizer: Any,
    streamer: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Call the model's own ``generate`` with the speculator bound to what it would drop."""
    kwargs |= _named(args[1:], kwargs)
    args, streamer = args[:1], kwargs.pop("streamer", streamer)
    refused = [name for name in REFUSED if kwargs.get(name)]
    if _setting("token_healing", model, kwargs):
        refused.append("token_healing")
    if _setting("cache_implementation", model, kwargs) == "paged":
        refused.append("cache_implementation='paged'")
    for name, off in REMOTE.items():
        value = _setting(name, model, kwargs)
        if value is not None and value != off:
            refused.append(f"{name}={value}")
    if refused:
        message = f"{', '.join(refused)} cannot be combined with a Speculator; remove it"
        if speculator.unsupported == "error":
            raise UnsupportedError(message)
        if kwargs.pop("generator", None) is not None:
            raise UnsupportedError(f"generator: {message}")
        kwargs.pop("reference_ids", None)
        speculator.log_once(f"decoding without speculation: {message}")
        given = {"tokenizer": tokenizer, "streamer": streamer}
        return plain(*args, **kwargs, **{k: v for k, v in given.items() if v is not None})
    kwargs = {name: value for name, value in kwargs.items() if name not in REFUSED}
    if tokenizer is not None:
        kwargs = _stop_strings_as_criterion(model, tokenizer, kwargs)
    own_cache = kwargs.get("past_key_values") is None
    bound = BoundSpeculator(speculator, streamer, kwargs.pop("synced_gpus", None), own_cache)
    return plain(*args, **kwargs, streamer=streamer, custom_generate=bound)


@contextmanager
def _ended(streamer: Any) -> Iterator[None]:
    """End the streamer where the block raises, which ``generate`` does not: someone may wait."""
    try:
        yield
    except BaseException:
        if streamer is not None:
            with suppress(Exception):
                streamer.end()
        raise


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The positional arguments of ``generate`` behind the first one, by name."""
    if not args:
        return {}
    from transformers import GenerationMixin

    names = [*inspect.signature(GenerationMixin.generate).parameters][2:-1]
    if len(args) > len(names):
        raise TypeError(f"generate takes at most {len(names) + 1} positional arguments")
    named = dict(zip(names, args, strict=False))
    for name in named:
        if name in kwargs:
            raise TypeError(f"generate got multiple values for argument {name!r}")
    return named


def _setting(name: str, model: Any, kwargs: dict[str, Any]) -> Any:
    """A generation setting as ``generate`` resolves it: argument, given config, model's config."""
    if name in kwargs:
        return kwargs[name]
    for config in (kwargs.get("generation_config"), model.generation_config):
        value = getattr(config, name, None)
        if value is not None:
            return value
    return None


def _stop_strings_as_criterion(
    model: Any, tokenizer: Any, kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Replace stop_strings, which need the tokenizer that transformers drops, by a criterion."""
    strings = _setting("stop_strings", model, kwargs)
    if strings is None:
        return kwargs
    from transformers.generation import StoppingCriteriaList, StopStringCriteria

    criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or ())
    if not any(type(each) is StopStringCriteria for each in criteria):  # as generate merges them
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=strings))
    kwargs = kwargs | {"stopping_criteria": criteria}
    config = kwargs.get("generation_config")
    if config is not None and "stop_strings" not in kwargs:
        kwargs["generation_config"] = copy.deepcopy(config)
        kwargs["generation_config"].stop_strings = None
    if "stop_strings" in kwargs or model.generation_config.stop_strings is not None:
        kwargs["stop_strings"] = None  # an argument overrides the model's own config
    return kwargs
