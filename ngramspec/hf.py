"""The boundary to transformers: ``generate`` with all of its arguments."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from ngramspec.decoding.call import decode_call
from ngramspec.decoding.heads import HEAD_SETTINGS, check_tokenizers, requested_head
from ngramspec.decoding.request import GenerateCall
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.hf_private import mark_as_made_by_generate
from ngramspec.hf_model.support import HUB_MODES_OFF, refusal
from ngramspec.speculator import Speculator
from ngramspec.stores.choice import open_stores

if TYPE_CHECKING:
    from ngramspec.drafters.model import ModelDrafter


class GenerateHook:
    """The ``custom_generate`` callable of a call: collects the call's arguments and runs it.

    transformers passes a callable only the arguments that its signature names, and drops some of
    them. So the hook has the signature of ``Speculator.__call__``, and gets the dropped arguments
    when it is made.

    Args:
        run: decodes the collected call.
        own_cache: whether ``generate`` makes the cache, because the caller passed none.
        **dropped: the arguments that transformers does not pass to a callable.

    Attributes:
        called: whether ``generate`` has called it.
    """

    def __init__(
        self, run: Callable[[GenerateCall], Any], *, own_cache: bool, **dropped: Any
    ) -> None:
        self.called = False
        self._run, self._own_cache, self._dropped = run, own_cache, dropped
        self.__signature__ = _HOOK_SIGNATURE

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        bound = _HOOK_SIGNATURE.bind(*args, **kwargs | self._dropped)
        bound.apply_defaults()
        call = GenerateCall(**bound.arguments)
        cache = call.model_kwargs.get("past_key_values")
        if self._own_cache and cache is not None:
            mark_as_made_by_generate(cache)
        return self._run(call)


def _signature_without_self(function: Any) -> inspect.Signature:
    signature = inspect.signature(function)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


_HOOK_SIGNATURE = _signature_without_self(Speculator.__call__)


def generate(
    model: Any,
    *args: Any,
    speculator: Speculator | None = None,
    tokenizer: Any = None,
    streamer: Any = None,
    **kwargs: Any,
) -> Any:
    """``model.generate`` with speculation: the same arguments and the same return value.

    It supports a ``streamer`` and ``stop_strings`` (with the ``tokenizer``), which transformers
    does not pass to a ``custom_generate`` callable.

    Args:
        model: a transformers model.
        *args: positional arguments of ``model.generate``.
        speculator: how to speculate; None: a new Speculator().
        tokenizer: the model's tokenizer, needed for stop_strings.
        streamer: receives the prompt and then every token, with one ``put`` each.
        **kwargs: keyword arguments of ``model.generate``, of which ``assistant_model``,
            ``assistant_early_exit`` and ``use_mtp`` add a draft source; and ``reference_ids``,
            ``stores``, ``extra_stores``, ``session`` and ``tools`` (here also the list of the
            tools' schemas, with the ``tokenizer``), see Speculator.__call__.

    Raises:
        UnsupportedError: an argument cannot be combined with speculation; the message names it.

    Example:
        ``ngramspec.generate(model, **inputs, max_new_tokens=64, streamer=streamer)``
    """
    speculator = checked(speculator)
    given = {"tokenizer": tokenizer, "streamer": streamer}
    kwargs |= {name: value for name, value in given.items() if value is not None}
    with _ended(kwargs):
        args = _name(model.generate, model, args, kwargs)
        if kwargs.get("custom_generate") is not None:
            raise ValueError(
                "custom_generate cannot be combined with ngramspec.generate; remove it"
            )
        return _generate(model.generate, model, args, speculator, kwargs)


def speculate(
    model: Any,
    plain: Callable[..., Any],
    speculator: Speculator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call of a model's ``generate``, here ``plain``, with speculation.

    A call that has a ``custom_generate`` argument is passed to ``plain`` unchanged.
    """
    if kwargs.get("custom_generate") is not None:
        return plain(*args, **kwargs)
    with _ended(kwargs):
        args = _name(plain, model, args, kwargs)
        if kwargs.get("custom_generate") is not None:
            return plain(*args, **kwargs)
        return _generate(plain, model, args, speculator, kwargs)


def checked_arguments(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Move a call's positional arguments except the first to ``kwargs``; return the others.

    Raises:
        UnsupportedError: the arguments rule out speculation.
    """
    args = _name(model.generate, model, args, kwargs)
    refused = _refused(model.generate, model, kwargs)
    if refused is not None:
        raise UnsupportedError(refused)
    return args


def checked(given: Speculator | None) -> Speculator:
    """The given Speculator, or a new one for None; anything else is a TypeError."""
    if given is not None and not isinstance(given, Speculator):
        name = type(given).__name__
        raise TypeError(f"speculator must be a Speculator or None, got {name}")
    return Speculator() if given is None else given


def _generate(
    plain: Callable[..., Any],
    model: Any,
    args: tuple[Any, ...],
    speculator: Speculator,
    kwargs: dict[str, Any],
) -> Any:
    """Call the model's ``generate`` with a hook that has the arguments it would drop."""
    refused = _refused(plain, model, kwargs)
    if refused is not None:
        return _without_speculation(plain, args, speculator, kwargs, refused)
    try:
        head = _take_head(model, kwargs)
    except UnsupportedError as error:
        return _without_speculation(plain, args, speculator, kwargs, str(error))
    if kwargs.get("tokenizer") is not None:
        kwargs = _stop_strings_as_criterion(model, kwargs["tokenizer"], kwargs)
        _read_tools(model, kwargs)
    _check_stores(speculator, kwargs)
    own_cache = kwargs.get("past_key_values") is None
    synced_gpus = kwargs.pop("synced_gpus", None)
    hook = GenerateHook(
        lambda call: decode_call(speculator.settings(head), call),
        own_cache=own_cache,
        streamer=kwargs.get("streamer"),
        synced_gpus=synced_gpus,
    )
    # transformers prepares inputs, cache, processors and criteria. It then calls the hook instead
    # of its own decoding loop, and ``decode_call`` takes control.
    output = plain(*args, **kwargs | {"custom_generate": hook})
    if not hook.called:
        speculator.log_once(
            f"decoding without speculation: the generate of {type(model).__name__} did not call"
            " the custom_generate that it was given"
        )
    return output


def _take_head(model: Any, kwargs: dict[str, Any]) -> ModelDrafter | None:
    """Take the arguments that name a head out of a call; return the head, or None.

    Otherwise transformers would use the head itself, and refuse batches and stateful models.
    """
    settings = {name: _setting(name, model, kwargs) for name in HEAD_SETTINGS}
    head = requested_head(settings)
    check_tokenizers(kwargs.get("tokenizer"), kwargs.pop("assistant_tokenizer", None))
    kwargs.pop("assistant_model", None)
    for name in ("assistant_early_exit", "use_mtp"):
        if settings[name] is not None:
            kwargs[name] = HEAD_SETTINGS[name]  # the argument overrides the configs
    return head


def _check_stores(speculator: Speculator, kwargs: dict[str, Any]) -> None:
    """Raise a ValueError if a store was built with a tokenizer other than the call's."""
    tokenizer = kwargs.get("tokenizer")
    if tokenizer is None:
        return
    own = kwargs.get("stores")
    stores = speculator.stores if own is None else open_stores(own)
    for store in (*stores, *open_stores(kwargs.get("extra_stores"), "extra_stores")):
        store.check_tokenizer(tokenizer)


def _read_tools(model: Any, kwargs: dict[str, Any]) -> None:
    """Make a ToolCalls of a list of tools, which are an argument or an entry of the config."""
    tools = kwargs.get("tools")
    if tools is None:
        entry = _setting("ngramspec", model, kwargs)
        tools = entry.get("tools") if isinstance(entry, dict) else None
    if isinstance(tools, list):
        from ngramspec.drafters.tool_calls import ToolCalls  # most calls have none

        kwargs["tools"] = ToolCalls(tools, kwargs["tokenizer"])


def _refused(plain: Callable[..., Any], model: Any, kwargs: dict[str, Any]) -> str | None:
    """Why a call's arguments rule out speculation, with the remedy; None if they do not."""
    refused: dict[str, Any] = {}
    if _setting("token_healing", model, kwargs):
        refused["token_healing"] = "True"
    if _setting("cache_implementation", model, kwargs) == "paged":
        refused["cache_implementation"] = "'paged'"
    for name, off in HUB_MODES_OFF.items():
        value = _setting(name, model, kwargs)
        if value is not None and value != off:
            refused[name] = value
    if refused:
        return refusal(refused)
    parameters = inspect.signature(plain).parameters
    kinds = {each.kind for each in parameters.values()}
    if "custom_generate" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
        return None
    name = type(model).__name__
    return (
        f"the generate of {name} takes no custom_generate, which a Speculator needs; let it"
        " accept **kwargs and pass them to super().generate, or pass"
        " Speculator(unsupported='plain') to decode without speculation"
    )


def _without_speculation(
    plain: Callable[..., Any],
    args: tuple[Any, ...],
    speculator: Speculator,
    kwargs: dict[str, Any],
    refused: str,
) -> Any:
    """Decode without speculation if unsupported="plain"; else raise an UnsupportedError."""
    if speculator.unsupported == "error":
        raise UnsupportedError(refused)
    if kwargs.pop("generator", None) is not None:
        raise UnsupportedError(f"generator: {refused}")
    for name in ("reference_ids", "stores", "extra_stores", "session", "tools"):
        kwargs.pop(name, None)
    speculator.log_once(f"decoding without speculation: {refused}")
    return plain(*args, **kwargs)


@contextmanager
def _ended(kwargs: dict[str, Any]) -> Iterator[None]:
    """End a call's streamer if the block raises; else its readers would wait forever.

    Args:
        kwargs: the call's keyword arguments, which the block may change.
    """
    try:
        yield
    except BaseException:
        if kwargs.get("streamer") is not None:
            with suppress(Exception):
                kwargs["streamer"].end()
        raise


def _name(
    plain: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Move a call's positional arguments except the first to ``kwargs``.

    Returns:
        The arguments that stay positional.
    """
    if len(args) < 2:
        return args
    parameters = _positional(plain, model)
    if len(args) > len(parameters):
        raise TypeError(f"generate takes at most {len(parameters)} positional arguments")
    stay = max(1, sum(each.kind is each.POSITIONAL_ONLY for each in parameters))
    for each, value in zip(parameters[stay:], args[stay:], strict=False):
        if each.name in kwargs:
            raise TypeError(f"generate got multiple values for argument {each.name!r}")
        kwargs[each.name] = value
    return args[:stay]


def _positional(plain: Callable[..., Any], model: Any) -> list[inspect.Parameter]:
    """The positional parameters of a model's ``generate``.

    A ``generate(*args)`` is assumed to pass them on to the ``generate`` of the model's class, of
    the model inside an adapter, or of transformers, in this order.
    """
    from transformers import GenerationMixin

    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = [getattr(type(each), "generate", None) for each in (model, base)]
    for which in (plain, *own, GenerationMixin.generate):
        if which is None:
            continue
        parameters = list(inspect.signature(which).parameters.values())
        if not any(each.kind is each.VAR_POSITIONAL for each in parameters):
            kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
            known = [each for each in parameters if each.kind in kinds]
            return known if which is plain else known[1:]  # an unbound function has ``self`` first
    raise AssertionError("transformers' own generate names its parameters")


def _setting(name: str, model: Any, kwargs: dict[str, Any]) -> Any:
    """A generation setting, resolved as in ``generate``: argument, given config, model's config."""
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
    """Replace stop_strings by a criterion, as transformers drops the tokenizer they need."""
    strings = _setting("stop_strings", model, kwargs)
    if strings is None:
        return kwargs
    from transformers.generation import StoppingCriteriaList, StopStringCriteria

    criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or ())
    if not any(type(each) is StopStringCriteria for each in criteria):  # as in generate
        criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=strings))
    kwargs = kwargs | {"stopping_criteria": criteria}
    config = kwargs.get("generation_config")
    if config is not None and "stop_strings" not in kwargs:
        kwargs["generation_config"] = copy.deepcopy(config)
        kwargs["generation_config"].stop_strings = None
    if "stop_strings" in kwargs or model.generation_config.stop_strings is not None:
        kwargs["stop_strings"] = None  # the argument overrides the model's config
    return kwargs
