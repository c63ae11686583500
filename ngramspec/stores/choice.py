"""The stores that a user can name: corpora, paths of corpora, and shared-store namespaces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeAlias
from urllib.parse import urlsplit

from ngramspec._native.store_reader import StorePair, StoreSource

if TYPE_CHECKING:  # most calls have no stores
    from ngramspec.stores.corpus import Corpus
    from ngramspec.stores.shared import Namespace

Store: TypeAlias = "Corpus | Namespace | str | PathLike[str] | Mapping[str, Any]"
OpenStore: TypeAlias = "Corpus | Namespace"


class NotCopied:
    """A store that ``copy`` and ``deepcopy`` return unchanged, so copies of its users share it."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


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
        known = _opened(store, f"{name}[{i}]")
        if known not in opened:
            opened.append(known)
    return tuple(opened)


def _opened(store: Any, name: str) -> Any:
    from ngramspec.stores.corpus import Corpus
    from ngramspec.stores.shared import Namespace, SharedStore, made_namespace
    from ngramspec.stores.shared_request import SharedRequest
    from ngramspec.stores.siblings import SiblingAnswer

    if isinstance(store, Corpus | Namespace | SharedRequest | SiblingAnswer):
        return store
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


def one_source(stores: Sequence[Any]) -> StoreSource | None:
    """Several stores as one; None if there are none."""
    if not stores:
        return None
    source: StoreSource = stores[-1].index
    for store in reversed(stores[:-1]):
        source = StorePair(store.index, source)
    return source


def described(stores: Sequence[OpenStore]) -> list[Any]:
    """The stores as JSON values, without their text. ``open_stores`` makes equal ones from them.

    A ValueError says that a store was not made from settings and exists only in memory.
    """
    from ngramspec.stores.corpus import Corpus

    values: list[Any] = []
    for store in stores:
        if isinstance(store, Corpus):
            values.append(str(store.path))
            continue
        if store.settings is None:
            raise ValueError(
                f"{store!r} lies in memory and cannot be kept; leave it out of stores=, and pass it"
                " to the calls as extra_stores="
            )
        if urlsplit(store.settings.get("sync", "")).password is not None:
            raise ValueError(
                "sync has a password, which is not written to a file; leave it out of stores="
            )
        values.append(store.settings)
    return values
