"""Knowledge that outlives a request: corpora on disk, and the output of earlier requests.

A store's module is loaded when its class is first asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from ngramspec.lazy_names import lazy_names
from ngramspec.stores.base import Source

if TYPE_CHECKING:
    from ngramspec.stores.corpus import Corpus
    from ngramspec.stores.files import StoreFileError
    from ngramspec.stores.shared import Namespace, SharedStore, StoreStatistics

__all__ = ["Corpus", "Namespace", "SharedStore", "StoreFileError", "StoreStatistics", "open_stores"]
__getattr__ = lazy_names(
    __name__,
    {
        "corpus": ("Corpus",),
        "files": ("StoreFileError",),
        "shared": ("Namespace", "SharedStore", "StoreStatistics"),
    },
)
OpenStore: TypeAlias = "Corpus | Namespace"
Store: TypeAlias = "OpenStore | str | PathLike[str] | Mapping[str, Any]"


def open_stores(
    stores: Sequence[Any] | None, name: str = "stores", tokenizer: Any = None
) -> tuple[Any, ...]:
    """Open the stores that a user names, without duplicates; errors begin with ``name``.

    They are corpora, paths of corpora, namespaces, requests in namespaces, and settings of a new
    shared store, see ``made_namespace``. None: none.
    """
    if stores is None:
        return ()
    if isinstance(stores, str) or not isinstance(stores, Sequence):
        raise TypeError(f"{name} must be a list of stores, got {type(stores).__name__}")
    opened: list[Any] = []
    for i, store in enumerate(stores):
        known = store if isinstance(store, Source) else _opened(store, f"{name}[{i}]", tokenizer)
        if known not in opened:
            opened.append(known)
    return tuple(opened)


def _opened(store: Any, name: str, tokenizer: Any) -> Source:
    from ngramspec.stores.corpus import Corpus  # most calls have no stores
    from ngramspec.stores.shared import SharedStore, made_namespace

    if isinstance(store, Mapping):
        return made_namespace(store, tokenizer)
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
