"""Functions that recognize objects by the classes in ``class_names``."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from inspect import signature
from typing import Any

from ngramspec.hf_model.compat import class_names

PACKAGE = "transformers"
# Of models, see ``class_names`` for the reasons.
BY_SLOT = class_names.BY_SLOT.keys()
WIDENS_MASK = class_names.WIDENS_MASK.keys()
REREADS = class_names.REREADS.keys()
NOT_STATIC = class_names.NOT_STATIC.keys()
PLACES_ONE_TOKEN_ELSEWHERE = class_names.PLACES_ONE_TOKEN_ELSEWHERE.keys()
ATTENDS_BY_OUTPUT = class_names.ATTENDS_BY_OUTPUT.keys()
PASSES_POSITIONS = class_names.PASSES_POSITIONS.keys()
# Of modules in models.
POSITION_EMBEDDINGS = class_names.POSITION_EMBEDDINGS.keys()
GROWING_EMBEDDINGS = class_names.GROWING_EMBEDDINGS
POSITION_BIASES = class_names.POSITION_BIASES.keys()
ONE_AT_A_TIME = {name: row.use for name, row in class_names.ONE_AT_A_TIME.items()}
OWN_CACHE = {name: row.use for name, row in class_names.OWN_CACHE.items()}
# Of layers and caches.
DYNAMIC = "DynamicLayer"
INDEXED = "DynamicIndexedLayer"
STATIC = "StaticLayer"
CROPPED = class_names.CROPPED_LAYERS.keys()
LINEAR = class_names.LINEAR_LAYERS.keys()
STATIC_SLIDING = class_names.STATIC_SLIDING_LAYERS.keys()
KNOWN_CACHES = class_names.KNOWN_CACHES.keys()
# Processors whose result for a row does not depend on other rows, and those of them that do not
# depend on the committed tokens either.
BY_ROW = frozenset(class_names.BY_ROW)
HISTORY_FREE = frozenset(class_names.HISTORY_FREE)
SUPPRESSING = class_names.SUPPRESSING.keys()
BIASING = class_names.BIASING.keys()
END_OF_SEQUENCE = "EosTokenCriteria"
MAX_LENGTH = "MaxLengthCriteria"
MAX_TIME = "MaxTimeCriteria"


def names_of(model: Any) -> frozenset[str]:
    """Return the names of a model's class and of all its base classes."""
    return frozenset(kind.__name__ for kind in type(model).__mro__)


def is_stock_model(kind: type) -> bool:
    """Whether a class is a model of transformers."""
    return kind.__module__.startswith(f"{PACKAGE}.models.")


def stock_name(each: Any, module: str) -> str:
    """Return the name of an object's class if a module of transformers defines it, or ""."""
    kind = type(each)
    return kind.__name__ if kind.__module__ == f"{PACKAGE}.{module}" else ""


# Caches and layers


def kind_of(each: Any) -> str:
    """Return the name of a cache's or layer's class, or of its base class in transformers.

    The base class counts if a subclass overrides none of its methods, because it can then be rolled
    back in the same way.
    """
    kinds = type(each).__mro__
    for place, kind in enumerate(kinds):
        if kind.__module__ == f"{PACKAGE}.{class_names.CACHE_MODULE}":
            base = {name for above in kind.__mro__ for name in vars(above)}
            changed = {name for below in kinds[:place] for name in vars(below)}
            return type(each).__name__ if any(map(_matters, changed & base)) else kind.__name__
    return type(each).__name__


def _matters(name: str) -> bool:
    """Whether overriding a name changes behaviour. Python itself sets many special names."""
    special = ("__call__", "__getattr__", "__getattribute__", "__getitem__", "__iter__", "__len__")
    return name in special or not (name.startswith("__") or name == "_abc_impl")


# Processors and criteria


def all_stock(processors: Iterable[Any] | None, names: Collection[str]) -> bool:
    """Whether all processors are of the named classes of transformers; True if there are none."""
    return all(processor_name(each) in names for each in processors or ())


def processor_name(processor: Any) -> str:
    """Return the name of a processor's class if transformers defines it, or ""."""
    return stock_name(processor, class_names.PROCESSOR_MODULE)


def caller_of(processors: Any) -> Callable[..., Any]:
    """Return a function that applies a list of processors to tokens and scores.

    A LogitsProcessorList inspects each processor's signature at every call, which takes longer than
    many processors. The function only does so here. If a processor has more parameters, it is
    the list itself, which then raises an error.
    """
    known = processor_name(processors) in class_names.PROCESSOR_LIST
    if not known or any(len(signature(each.__call__).parameters) > 2 for each in processors):
        call: Callable[..., Any] = processors
        return call

    def apply(ids: Any, scores: Any) -> Any:
        for processor in processors:
            scores = processor(ids, scores)
        return scores

    return apply


def criterion_name(criterion: Any) -> str:
    """Return the name of a stopping criterion's class if transformers defines it, or ""."""
    return stock_name(criterion, class_names.CRITERION_MODULE)


# Modules of models


def indexers_of(model: Any) -> list[Any]:
    """Return the modules of a model that select keys for its indexed attention."""
    return [each for each in model.modules() if type(each).__name__.endswith("Indexer")]


def routes_tokens(model: Any) -> bool:
    """Whether a model routes tokens to experts."""
    return any(
        name.rpartition(".")[2] == "experts"
        or any(part in type(module).__name__ for part in ("Expert", "Moe"))
        for name, module in model.named_modules()
    )


def quantizes_activations(model: Any) -> bool:
    """Whether a model is quantized, unless it is known that only its weights are."""
    quantizer = getattr(model, "hf_quantizer", None)
    return quantizer is not None and type(quantizer).__name__ not in class_names.QUANTIZER


def least_step_size(model: Any) -> float:
    """Return the largest lower bound on step sizes among a model's recurrent layers; 0: none."""
    bounds = (getattr(module, "time_step_limit", (0.0,))[0] for module in model.modules())
    return max(bounds, default=0.0)


def skips_padding(model: Any) -> bool:
    """Whether position embeddings of a model count tokens other than padding."""
    return any(hasattr(each, "create_position_ids_from_input_ids") for each in model.modules())


def captures_states(hook: Any) -> bool:
    """Whether a hook is transformers' own, which captures states in calls that ask for them."""
    module = getattr(hook, "__module__", None)
    return bool(module == f"{PACKAGE}.{class_names.CAPTURE_MODULE}")
