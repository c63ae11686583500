"""The stores that a user can name: corpora, paths of corpora, and shared-store namespaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from ngramspec.stores.base import Source

if TYPE_CHECKING:  # most calls have no stores
    from ngramspec.stores.corpus import Corpus
    from ngramspec.stores.shared import Namespace

Store: TypeAlias = "Corpus | Namespace | str | PathLike[str] | Mapping[str, Any]"
OpenStore: TypeAlias = "Corpus | Namespace"


def open_stores(stores: Sequence[Any] | None, name: str = "stores") -> tuple[Any, ...]:
    """Open the stores that a user names, without duplicates; errors begin with ``name``.

    They are corpora, paths of corpora, namespaces, requests in namespaces, and settings of a new
    shared store: a dict of SharedStore's arguments and ``namespace``. None: none.
    """
    if stores is None:
        return ()
    if isinstance(stores, str) or not isinstance(stores, Sequence):
        raise TypeError(f"{name} must be a list of stores, got {type(stores).__name__}")
    opened: list[Any] = []
    for i, store in enumerate(stores):
        known = store if isinstance(store, Source) else _opened(store, f"{name}[{i}]")
        if known not in opened:
            opened.append(known)
    return tuple(opened)


def _opened(store: Any, name: str) -> Source:
    from ngramspec.stores.corpus import Corpus
    from ngramspec.stores.shared import SharedStore, made_namespace

    if isinstance(store, Mapping):
        return made_namespace(store)
    if isinstance(store, SharedStore):
        raise TypeError(f"{name} must be a namespace of a SharedStore: store['name']")
    if not isinstance(store, str | PathLike):
        raise TypeError(
            f"{name} must be a Corpus, the path of one, or a SharedStore's namespace, got"
            f" {type(store).__name__}"
        )
    try:
        return Corpus.open(store)
    except FileNotFoundError as error:
        raise FileNotFoundError(error.errno, f"{name}: there is no file", str(store)) from None
