"""The stores that a user names: corpora, or paths of corpora."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from ngramspec._native.store_source import StorePair, StoreSource
from ngramspec.stores.corpus import Corpus

Store = Corpus | str | PathLike[str]


def open_stores(stores: Sequence[Store] | None, name: str = "stores") -> tuple[Corpus, ...]:
    """Stores as a user names them, opened, each once.

    Args:
        stores: corpora and paths; None: none.
        name: of the argument, for messages.

    Raises:
        TypeError: not several stores, or one that is none.
        OSError: a file cannot be read.
        StoreFileError: a file that is no corpus.
    """
    if stores is None:
        return ()
    if isinstance(stores, str | PathLike | Corpus) or not isinstance(stores, Sequence):
        raise TypeError(f"{name} must be a list of stores, got {type(stores).__name__}")
    opened: list[Corpus] = []
    for i, store in enumerate(stores):
        if not isinstance(store, Corpus | str | PathLike):
            raise TypeError(
                f"{name}[{i}] must be a Corpus or the path of one, got {type(store).__name__}"
            )
        corpus = store if isinstance(store, Corpus) else Corpus.open(store)
        if all(other is not corpus for other in opened):
            opened.append(corpus)
    return tuple(opened)


def one_source(stores: Sequence[Corpus]) -> StoreSource | None:
    """Several stores as one; None without any."""
    if not stores:
        return None
    source: StoreSource = stores[-1].index
    for store in reversed(stores[:-1]):
        source = StorePair(store.index, source)
    return source
