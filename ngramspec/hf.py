"""The boundary to transformers: ``generate`` with all of its arguments, and ``enable``."""

from __future__ import annotations

import copy
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial, update_wrapper
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from ngramspec.decoding.request import Request, mtp_head
from ngramspec.decoding.setup import decode, version_fault, warmed_up
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.caches import cache_of, given_cache, mark_as_made_by_generate
from ngramspec.hf_model.facts import REFUSED_AT_ONCE, refusal
from ngramspec.speculator import Speculator
from ngramspec.stats import DecodeStats
from ngramspec.stores import open_entries, open_stores

if TYPE_CHECKING:
    from ngramspec.drafters.model import ModelDrafter


_lock = threading.RLock()  # the garbage collector may end a block while another begins
_PARAMETERS = inspect.signature(Speculator.__call__).parameters
_HOOK_SIGNATURE = inspect.Signature(list(_PARAMETERS.values())[1:])  # without self


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
        **kwargs: keyword arguments of ``model.generate``, of which ``assistant_model``
            and ``use_mtp`` add a draft source; and ``reference_ids``, ``stores``,
            ``extra_stores``, ``session`` and ``tools`` (here also the list of the tools' schemas,
            with the ``tokenizer``), see Speculator.__call__.

    Raises:
        UnsupportedError: an argument cannot be combined with speculation; the message names it.

    Example:
        ``ngramspec.generate(model, **inputs, max_new_tokens=64, streamer=streamer)``
    """
    speculator = checked(speculator)
    given = {"tokenizer": tokenizer, "streamer": streamer}
    kwargs |= {name: value for name, value in given.items() if value is not None}
    with end_streamer_on_error(kwargs):
        call = GenerateArguments(model.generate, model, args, kwargs)
        if kwargs.get("custom_generate") is not None:
            raise ValueError(
                "custom_generate cannot be combined with ngramspec.generate; remove it"
            )
        return call.speculate(speculator, unsupported="error")


def speculate(
    model: Any,
    plain: Callable[..., Any],
    speculator: Speculator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run a call of ``generate``, here ``plain``, with its own ``custom_generate`` or with ours."""
    if kwargs.get("custom_generate") is not None:
        return plain(*args, **kwargs)
    with end_streamer_on_error(kwargs):
        call = GenerateArguments(plain, model, args, kwargs)
        if kwargs.get("custom_generate") is not None:
            return plain(*call.args, **kwargs)
        return call.speculate(speculator, unsupported="plain")


def run_in_hook(
    model: Any,
    plain: Callable[..., Any],
    decode: Callable[[Request], Any],
    speculator: Speculator,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """The result of ``decode`` for a call that a model's ``generate``, here ``plain``, prepares."""
    with end_streamer_on_error(kwargs):
        call = GenerateArguments(plain, model, args, kwargs)
        refused = version_fault() or call.refused()
        if refused is not None:
            raise UnsupportedError(refused)
        found, _ = call.run(decode, speculator, call.prepare(speculator), unsupported="error")
    return found


def checked(given: Speculator | None) -> Speculator:
    """The given Speculator, or a new one for None; anything else is a TypeError."""
    if given is not None and not isinstance(given, Speculator):
        kind = "the class; pass Speculator()" if given is Speculator else type(given).__name__
        raise TypeError(f"speculator must be a Speculator or None, got {kind}")
    return Speculator() if given is None else given


@contextmanager
def end_streamer_on_error(kwargs: dict[str, Any]) -> Iterator[None]:
    """End a call's streamer if the block raises; else its readers would wait forever."""
    try:
        yield
    except BaseException:
        if kwargs.get("streamer") is not None:
            with suppress(Exception):
                kwargs["streamer"].end()
        raise


class NoHookError(UnsupportedError):
    """A model's own ``generate`` does not take ``custom_generate``."""

    def __init__(self, model: Any) -> None:
        super().__init__(
            f"the generate of {type(model).__name__} takes no custom_generate, which a Speculator"
            " needs; let it accept **kwargs and pass them to super().generate, or pass"
            " Speculator(unsupported='plain') to decode without speculation"
        )


class GenerateArguments:
    """A call of a model's ``generate``; positional arguments but the first are in ``kwargs``."""

    def __init__(
        self, plain: Callable[..., Any], model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.plain, self.model, self.args, self.kwargs = plain, model, args, kwargs
        self._given = args, dict(kwargs)
        if len(args) < 2:
            return
        parameters = self._positional()
        if len(args) > len(parameters):
            raise TypeError(f"generate takes at most {len(parameters)} positional arguments")
        stay = max(1, sum(each.kind is each.POSITIONAL_ONLY for each in parameters))
        for each, value in zip(parameters[stay:], args[stay:], strict=False):
            if each.name in kwargs:
                raise TypeError(f"generate got multiple values for argument {each.name!r}")
            kwargs[each.name] = value
        self.args = args[:stay]

    def _positional(self) -> list[inspect.Parameter]:
        """The positional parameters of ``generate``, or of the one that takes its ``*args``."""
        from transformers import GenerationMixin

        model = self.model
        base = model.get_base_model() if hasattr(model, "get_base_model") else model
        owners = [each for each in (type(model), type(base)) if hasattr(each, "generate")]
        for which in (self.plain, *(each.generate for each in (*owners, GenerationMixin))):
            parameters = list(inspect.signature(which).parameters.values())
            if not any(each.kind is each.VAR_POSITIONAL for each in parameters):
                break
        named = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        known = [each for each in parameters if each.kind in named]
        return known if which is self.plain else known[1:]  # without self

    def setting(self, name: str) -> Any:
        """A setting, resolved as in ``generate``: argument, given config, model's config."""
        if name in self.kwargs:
            return self.kwargs[name]
        for config in (self.kwargs.get("generation_config"), self.model.generation_config):
            value = getattr(config, name, None)
            if value is not None:
                return value
        return None

    def refused(self) -> str | None:
        """Why the arguments rule out speculation, with the remedy; None if they do not."""
        refused: dict[str, Any] = {}
        if self.setting("token_healing"):
            refused["token_healing"] = "True"
        if self.setting("cache_implementation") == "paged":
            refused["cache_implementation"] = "'paged'"
        for name, off in REFUSED_AT_ONCE.items():
            value = self.setting(name)
            if value is not None and value != off:
                refused[name] = value
        if refused:
            return refusal(refused)
        parameters = inspect.signature(self.plain).parameters
        kinds = {each.kind for each in parameters.values()}
        if "custom_generate" in parameters or inspect.Parameter.VAR_KEYWORD in kinds:
            return None
        return str(NoHookError(self.model))

    def speculate(self, speculator: Speculator, *, unsupported: str) -> Any:
        """Run the call with speculation; ``unsupported`` is used if the Speculator's is None."""
        fault = version_fault()
        if fault is not None:
            return self._decode_plainly(fault)
        unsupported = speculator.options.unsupported or unsupported
        fall_back = partial(self._decode_plainly, speculator=speculator, unsupported=unsupported)
        refused = self.refused()
        if refused is not None:
            return fall_back(refused)
        try:
            head = self.prepare(speculator)
        except UnsupportedError as error:
            return fall_back(str(error))
        reason: str | None = None
        try:
            output, called = self.run(decode, speculator, head, unsupported=unsupported)
        except NoHookError as error:
            reason = str(error)
        if reason is not None:
            self.args, self.kwargs = self._given
            return fall_back(reason)
        if not called:
            speculator.fell_back(
                f"the generate of {type(self.model).__name__} did not call the custom_generate that"
                " it was given"
            )
        return output

    def run(
        self,
        decode: Callable[[Request], Any],
        speculator: Speculator,
        head: ModelDrafter | None,
        *,
        unsupported: str,
    ) -> tuple[Any, bool]:
        """Call ``generate`` with a hook; return its output, and whether it called the hook.

        The hook replaces transformers' decoding loop, and gets the arguments in its signature but
        those that transformers drops. A NoHookError says that ``generate`` refuses it.
        """
        generate_makes_cache, called = given_cache(self.kwargs) is None, False
        dropped = {"streamer": self.kwargs.get("streamer")}
        dropped["synced_gpus"] = self.kwargs.pop("synced_gpus", None)

        def hook(*args: Any, **kwargs: Any) -> Any:
            nonlocal called
            called = True
            bound = _HOOK_SIGNATURE.bind(*args, **kwargs | dropped)
            bound.apply_defaults()
            request = speculator.request(head, unsupported=unsupported, **bound.arguments)
            cache = cache_of(request.model_kwargs)
            if generate_makes_cache and cache is not None:
                mark_as_made_by_generate(cache)
            return decode(request)

        hook.__signature__ = _HOOK_SIGNATURE  # type: ignore[attr-defined]
        try:
            output = self.plain(*self.args, **self.kwargs | {"custom_generate": hook})
        except (TypeError, ValueError) as error:  # it validates its arguments, or passes them on
            if called or "custom_generate" not in str(error):
                raise
            raise NoHookError(self.model) from None
        return output, called

    def prepare(self, speculator: Speculator) -> ModelDrafter | None:
        """Apply arguments that transformers drops or uses itself, and return the call's head."""
        head = self._take_head()
        if self.kwargs.get("tokenizer") is not None:
            self._use_tokenizer(speculator, self.kwargs["tokenizer"])
        return head

    def _take_head(self) -> ModelDrafter | None:
        """Take the arguments that name a head out of the call, so that transformers uses none."""
        use_mtp = self.setting("use_mtp")
        head = requested_head(self.setting("assistant_model"), use_mtp)
        own, weight = self.kwargs.get("tokenizer"), self.setting("assistant_ensemble_weight")
        same = check_tokenizers(own, self.kwargs.get("assistant_tokenizer"))
        if head is not None:
            head.same_tokenizer = same
            if weight is not None:
                raise UnsupportedError(
                    f"assistant_ensemble_weight={weight} changes probabilities; remove it"
                )
        for name in ("assistant_model", "assistant_tokenizer"):
            self.kwargs.pop(name, None)
        if use_mtp is not None:
            self.kwargs["use_mtp"] = False  # the argument overrides the configs
        return head

    def _use_tokenizer(self, speculator: Speculator, tokenizer: Any) -> None:
        """Apply the tokenizer, which transformers drops, to stop_strings, tools and stores."""
        kwargs = self.kwargs
        strings = self.setting("stop_strings")
        if strings is not None:
            self._stop_at(strings, tokenizer)
        tools = kwargs.get("tools")
        if tools is None:
            entries = self.setting("ngramspec")
            tools = entries.get("tools") if isinstance(entries, dict) else None
        if tools is not None:
            from ngramspec.drafters.tool_calls import ToolCalls  # most calls have none

            if not isinstance(tools, ToolCalls):
                tools = ToolCalls(tools, tokenizer)
            kwargs["tools"] = tools
        stores = open_entries(kwargs.get("stores"), speculator.stores)
        for store in chain(*stores, open_stores(kwargs.get("extra_stores"), "extra_stores")):
            store.check_tokenizer(tokenizer)

    def _stop_at(self, strings: Any, tokenizer: Any) -> None:
        """Replace stop_strings by a criterion."""
        from transformers.generation import StoppingCriteriaList, StopStringCriteria

        kwargs = self.kwargs
        criteria = StoppingCriteriaList(kwargs.get("stopping_criteria") or ())
        if not any(type(each) is StopStringCriteria for each in criteria):  # as in generate
            criteria.append(StopStringCriteria(tokenizer=tokenizer, stop_strings=strings))
        kwargs["stopping_criteria"] = criteria
        config = kwargs.get("generation_config")
        if config is not None and "stop_strings" not in kwargs:
            kwargs["generation_config"] = copy.deepcopy(config)
            kwargs["generation_config"].stop_strings = None
        if "stop_strings" in kwargs or self.model.generation_config.stop_strings is not None:
            kwargs["stop_strings"] = None  # the argument overrides the model's config

    def _decode_plainly(
        self, reason: str, *, speculator: Speculator | None = None, unsupported: str = "plain"
    ) -> Any:
        """Decode without speculation, or raise an error if the caller asks for it."""
        if unsupported == "error":
            raise UnsupportedError(reason)
        if self.kwargs.pop("generator", None) is not None:
            raise UnsupportedError(f"generator: {reason}")
        for name in ("reference_ids", "stores", "extra_stores", "session", "tools"):
            self.kwargs.pop(name, None)
        if speculator is not None:
            speculator.fell_back(reason)
        return self.plain(*self.args, **self.kwargs)


# Models that cannot run by themselves, by the start of their class names.
DEPENDENT = {
    ("Gemma4Assistant", "Gemma4UnifiedAssistant"): "it reads the target's keys and values of every"
    " layer, which roll back in other places than its own drafts",
    ("DFlash", "MuseGlimmerAssistant"): "it drafts a block at once from several layers' states",
}


def requested_head(assistant: Any, use_mtp: Any) -> ModelDrafter | None:
    """The head for a call's ``assistant_model`` and ``use_mtp``; None: it asks for none."""
    if assistant is None:
        return mtp_head(use_mtp)
    if use_mtp:
        raise UnsupportedError("assistant_model and use_mtp cannot be combined; pass one of them")
    from ngramspec.drafters.model import ModelDrafter  # most calls have none

    if not ModelDrafter.takes(assistant):
        raise TypeError(
            "assistant_model must be a causal language model of transformers, or the path of a"
            f" local folder with one, got {assistant!r}"
        )
    for starts, reason in DEPENDENT.items():
        if type(assistant).__name__.startswith(starts):
            from ngramspec.hf_model.assistants import named

            raise UnsupportedError(
                f"assistant_model={named(assistant)} is not supported: {reason}; pass a causal"
                " language model with the target's tokenizer"
            )
    return ModelDrafter(assistant)


def check_tokenizers(own: Any, assistants: Any) -> bool:
    """Whether a call's tokenizers are known to be equal; an UnsupportedError if they differ."""
    if own is None or assistants is None:
        return False
    from ngramspec.drafters.model import same_vocabulary  # most calls have none

    if not same_vocabulary(own, assistants):
        raise UnsupportedError(
            "assistant_tokenizer differs from tokenizer; pass an assistant_model with the target's"
            " tokenizer"
        )
    return True


class PatchedGenerate:
    """Replaces a model's ``generate`` while it is enabled; the newest Speculator is used.

    After the last one is disabled it calls the original ``generate``, here ``plain``, for code that
    still refers to it, such as a wrapper. ``own``: the original was an attribute of the object.
    """

    def __init__(self, model: Any, plain: Callable[..., Any], *, own: bool) -> None:
        update_wrapper(self, plain, updated=())  # its name, documentation and signature
        self.model, self.plain, self.own = model, plain, own
        # Those that are active, the newest last. It is replaced under the lock, never modified.
        self.active: tuple[Enabled, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        active = self.active
        if not active:
            return self.plain(*args, **kwargs)
        return speculate(self.model, self.plain, active[-1].speculator, args, kwargs)

    def restore(self, name: str) -> None:
        """Give the model its original method back."""
        if self.own:
            setattr(self.model, name, self.plain)
        else:
            delattr(self.model, name)

    def __reduce__(self) -> tuple[Any, ...]:
        """Deep copies and pickles of the model have the original ``generate`` instead."""
        return copy.copy, (self.plain,)


class PatchedBatch(PatchedGenerate):
    """Replaces ``generate_batch``, which never calls ``generate``, to log that it is not faster."""

    def __init__(self, patched: PatchedGenerate) -> None:
        model = patched.model
        super().__init__(model, model.generate_batch, own="generate_batch" in vars(model))
        self.patched = patched

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for each in self.patched.active[-1:]:
            each.speculator.log_once(
                "generate_batch is not accelerated, because it never calls generate"
            )
        return self.plain(*args, **kwargs)


_handles: WeakSet[Enabled] = WeakSet()  # those that are active are kept by ``PatchedGenerate``


class Enabled:
    """Speculation that is switched on for a model until ``disable``, or until its block ends.

    A ``with`` block switches it on again.

    Attributes:
        speculator (Speculator): can be changed while it is on, for example its drafter.
        model: the model.
    """

    def __init__(self, model: Any, speculator: Speculator) -> None:
        self.speculator, self.model = speculator, model
        self._enable()

    def _enable(self) -> None:
        model = self.model
        with _lock:
            _handles.add(self)
            patched = vars(model).get("generate")
            if not (isinstance(patched, PatchedGenerate) and patched.model is model):
                patched = PatchedGenerate(model, model.generate, own="generate" in vars(model))
                if hasattr(model, "generate_batch"):
                    model.generate_batch = PatchedBatch(patched)
            patched.active = (*patched.active, self)
            model.generate = self._patched = patched

    @property
    def stats(self) -> DecodeStats:
        """The counts and times of the Speculator's calls."""
        return self.speculator.stats

    def warm_up(self, *args: Any, **kwargs: Any) -> tuple[int, ...]:
        """Compile what calls like this one need, so that none of them waits for it.

        It runs the prompt and generates nothing. Later calls are compiled if their static caches
        have the same size, so pass the prompt and ``max_new_tokens`` of the longest one.

        Args:
            *args: positional arguments of ``model.generate``.
            **kwargs: its keyword arguments.

        Returns:
            The numbers of positions of the compiled forwards; empty: such calls compile nothing.

        Raises:
            UnsupportedError: such calls do not support speculation.

        Example:
            ``handle.warm_up(**inputs, max_new_tokens=512, cache_implementation="static")``
        """
        plain = self._patched.plain
        widths: tuple[int, ...] = run_in_hook(
            self.model, plain, warmed_up, self.speculator, args, kwargs
        )
        return widths

    def disable(self) -> None:
        """Switch speculation off; further calls do nothing.

        Calls that are running end with speculation.
        """
        with _lock:
            patched = self._patched
            patched.active = tuple(each for each in patched.active if each is not self)
            if not patched.active and vars(patched.model).get("generate") is patched:
                patched.restore("generate")
                batch = vars(patched.model).get("generate_batch")
                if isinstance(batch, PatchedBatch) and batch.patched is patched:
                    batch.restore("generate_batch")

    def __repr__(self) -> str:
        state = "on" if self in self._patched.active else "off"
        kind, tokens = type(self.model).__name__, self.stats.tokens_per_call
        return f"{state} for {kind}, {tokens:.1f} tokens per forward"

    def __enter__(self) -> Enabled:
        if self not in self._patched.active:
            self._enable()
        return self

    def __exit__(self, *raised: object) -> None:
        self.disable()


def enable(model: Any, speculator: Speculator | None = None) -> Enabled:
    """Speculate in every call of ``model.generate``, also in pipelines, until ``disable``.

    It replaces the ``generate`` of this one model object for all threads. It can be enabled several
    times, for example in threads, and disabled in any order: the newest Speculator is used. A call
    that has a ``custom_generate`` argument is not changed, nor is a ``generate`` that other code
    sets on the model. An unsupported call runs without speculation, which is logged once, unless
    the Speculator has ``unsupported="error"``. A deep copy or a pickle of the model is
    independent and has the original ``generate``. A shallow copy (``copy.copy``) shares the
    replaced ``generate``, as it shares the weights.

    Args:
        model: a transformers model.
        speculator: how to speculate; None: a new Speculator().

    Returns:
        A handle with ``stats``, ``speculator``, ``warm_up()`` and ``disable()``. It is a context
        manager, too.

    Example:
        ``handle = ngramspec.enable(model); model.generate(**inputs); print(handle.stats)``
    """
    return Enabled(_unwrapped(model), checked(speculator))


def disable(model: Any) -> None:
    """Switch off all speculation that ``enable`` switched on for a model, in blocks too.

    Calls that are running end with speculation. Nothing happens if none is on.

    Args:
        model: a transformers model.

    Example:
        ``ngramspec.enable(model); model.generate(**inputs); ngramspec.disable(model)``
    """
    model = _unwrapped(model)
    with _lock:
        for each in [*_handles]:
            if each.model is model:
                each.disable()


def _unwrapped(model: Any) -> Any:
    """Return the model, or the one in torch.compile's; a TypeError if it is not a model."""
    model = getattr(model, "_orig_mod", model)
    if not (hasattr(model, "generate") and hasattr(model, "__dict__")):
        inner = (name for name in ("model", "module") if hasattr(model, name))
        hint = next((f"; pass its .{name}" for name in inner), "")
        raise TypeError(f"model must be a transformers model, got {type(model).__name__}{hint}")
    return model
