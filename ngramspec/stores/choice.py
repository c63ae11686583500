"""The stores that a user names: corpora, paths of corpora, and namespaces of shared stores."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, Protocol

from ngramspec._native.store_source import StorePair, StoreSource
from ngramspec.stores.corpus import Corpus
from ngramspec.stores.shared import Namespace, SharedStore
from ngramspec.stores.shared_request import SharedRequest

Store = Corpus | Namespace | str | PathLike[str]
OpenStore = Corpus | Namespace


class Searched(Protocol):
    """What drafts can be made from."""

    @property
    def index(self) -> StoreSource: ...


def open_stores(stores: Sequence[Any] | None, name: str = "stores") -> tuple[Any, ...]:
    """Stores as a user names them, opened, each once.

    Args:
        stores: corpora, paths, namespaces, and what requests do in namespaces; None: none.
        name: of the argument, for messages.

    Raises:
        TypeError: not several stores, or one that is none.
        OSError: a file cannot be read.
        StoreFileError: a file that is no corpus.
    """
    if stores is None:
        return ()
    if isinstance(stores, str | PathLike | Corpus | Namespace) or not isinstance(stores, Sequence):
        raise TypeError(f"{name} must be a list of stores, got {type(stores).__name__}")
    opened: list[Any] = []
    for i, store in enumerate(stores):
        if isinstance(store, SharedStore):
            raise TypeError(f"{name}[{i}] must be a namespace of a SharedStore: store['name']")
        if not isinstance(store, Corpus | Namespace | SharedRequest | str | PathLike):
            raise TypeError(
                f"{name}[{i}] must be a Corpus, the path of one, or a SharedStore's namespace, got"
                f" {type(store).__name__}"
            )
        known = Corpus.open(store) if isinstance(store, str | PathLike) else store
        if known not in opened:
            opened.append(known)
    return tuple(opened)


def one_source(stores: Sequence[Searched]) -> StoreSource | None:
    """Several stores as one; None without any."""
    if not stores:
        return None
    source = stores[-1].index
    for store in reversed(stores[:-1]):
        source = StorePair(store.index, source)
    return source


def described(stores: Sequence[OpenStore]) -> list[str]:
    """The stores as JSON values from which ``open_stores`` makes the same ones.

    Raises:
        ValueError: a store lies in memory only.
    """
    for store in stores:
        if not isinstance(store, Corpus):
            raise ValueError(
                f"{store!r} lies in memory and cannot be kept; leave it out of stores=, and pass it"
                " to the calls as extra_stores="
            )
    return [str(store.path) for store in stores if isinstance(store, Corpus)]
