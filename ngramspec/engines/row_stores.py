"""The stores in an engine's options: corpora by path, and stores that requests share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ngramspec.stores.shared import DEFAULT_BYTES, Namespace, SharedStore, made_namespace

SAVED_STORE_OPTIONS = ("path", "namespace", "max_bytes", "namespace_bytes")


def named_stores(given: object, tokenizer: Any = None) -> list[str | Namespace]:
    """The stores that the option ``stores`` names.

    It is a list of paths of corpora, and dicts of SharedStore's arguments and ``namespace``. With
    ``path``, the store is loaded from a file of ``SharedStore.save``, which is not written again.
    Only a store with ``sync`` needs the model's tokenizer.

    Raises:
        TypeError, ValueError: ``given`` is not such a list, or an entry is wrong.
        OSError: a file cannot be read.
    """
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise TypeError(f"stores must be a list of paths and dicts, got {given!r}")
    return [_named(at, each, tokenizer) for at, each in enumerate(given)]


def _named(at: int, given: Any, tokenizer: Any) -> str | Namespace:
    if isinstance(given, str):
        return given
    if not isinstance(given, Mapping):
        raise TypeError(f"stores[{at}] must be a path or a dict, got {given!r}")
    return _saved(at, given) if "path" in given else made_namespace(given, tokenizer)


def _saved(at: int, given: Mapping[str, Any]) -> Namespace:
    unknown = [str(name) for name in given if name not in SAVED_STORE_OPTIONS]
    if unknown or "namespace" not in given or not isinstance(given["path"], str):
        raise ValueError(
            f"stores[{at}]: a store with a path must have 'path' and 'namespace', and may have"
            f" max_bytes, namespace_bytes; got {dict(given)!r}"
        )
    store = SharedStore.load(
        given["path"],
        given.get("max_bytes", DEFAULT_BYTES),
        namespace_bytes=given.get("namespace_bytes"),
    )
    return store[given["namespace"]]
