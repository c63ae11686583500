"""Knowledge that outlives a request: corpora on disk, and the output of earlier requests.

A store's module is loaded when its class is first asked for.
"""

from __future__ import annotations

import hashlib
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from ngramspec.lazy_names import lazy_names

if TYPE_CHECKING:
    from ngramspec._native import StorePrior
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
Outlet: TypeAlias = Callable[..., None]  # publishes a request's tokens, see RedisSync.outlet


class NotCopied:
    """What ``copy`` and ``deepcopy`` return unchanged, so copies of its users share it."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self


class Source(NotCopied):
    """A store, or one request's access to it.

    Attributes:
        index: its look-ups.
        rehearsed: number of last prompt tokens from which a sequence learns how often it is right.
        familiar: what earlier requests of the conversation learned about it.
    """

    index: Any  # a StoreSource
    rehearsed = 0
    familiar: StorePrior | None = None
    _checked: weakref.ref[Any] | None = None  # the last tokenizer that fitted

    def request(self, limit: int = 0, session: str | None = None) -> Source:
        """What a request reads: a separate object if it also adds text, else the store itself.

        Token ids that it reads are below ``limit``; 0: no bound.
        """
        return self

    def description(self) -> Any:
        """A JSON value from which ``open_stores`` makes an equal store; a ValueError: none."""
        raise ValueError(f"{self!r} cannot be kept")

    @property
    def tokenizer(self) -> str:
        """The fingerprint of its tokenizer; empty: not known."""
        return ""

    def check_tokenizer(self, tokenizer: Any) -> None:
        """Raise a ValueError if its token ids are known to be another tokenizer's."""
        if self._checked is None or self._checked() is not tokenizer:
            self._check(tokenizer)
            with suppress(AttributeError, TypeError):  # no weak references, or fixed attributes
                self._checked = weakref.ref(tokenizer)

    def _check(self, tokenizer: Any) -> None:
        own = fingerprint(tokenizer) if self.tokenizer else ""
        if own != self.tokenizer:
            raise ValueError(
                f"{self!r} was built with another tokenizer: its fingerprint is {self.tokenizer},"
                f" that of the given one {own}; build it again with that one"
            )

    def check_vocabulary(self, size: int) -> None:
        """Raise a ValueError if it has token ids outside a vocabulary of ``size``."""
        largest = self.largest_id()
        if largest >= size:
            raise ValueError(
                f"{self!r} has token id {largest}, the vocabulary has {size}: it was built with"
                " another tokenizer"
            )

    def largest_id(self) -> int:
        """The largest token id, -1 if there is none or it is not known."""
        return -1


def fingerprint(tokenizer: Any) -> str:
    """The SHA-256 of a tokenizer's vocabulary, 64 hex digits, for any class of tokenizer."""
    digest = hashlib.sha256()
    pieces = vocabulary_of(tokenizer).items()
    for piece, number in sorted(pieces, key=lambda item: (item[1], item[0])):
        text = piece if isinstance(piece, bytes) else piece.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (number, len(text)) + text)
    return digest.hexdigest()


def vocabulary_size(tokenizer: Any) -> int:
    """The tokenizer's largest id plus one."""
    return max(vocabulary_of(tokenizer).values(), default=-1) + 1


def vocabulary_of(tokenizer: Any) -> dict[Any, int]:
    """A tokenizer's ids by piece; a TypeError if it has no ``get_vocab``."""
    get_vocab = getattr(tokenizer, "get_vocab", None)
    if not callable(get_vocab):
        raise TypeError(
            "tokenizer must be a transformers tokenizer or a tokenizers.Tokenizer, got"
            f" {type(tokenizer).__name__}"
        )
    return dict(get_vocab())


def encode(tokenizer: Any, text: str) -> list[int]:
    """Encode a text without adding special tokens."""
    encoder = getattr(tokenizer, "backend_tokenizer", tokenizer)  # transformers' fast tokenizers
    if hasattr(encoder, "encode_batch"):
        return list(encoder.encode(text, add_special_tokens=False).ids)
    return list(tokenizer.encode(text, add_special_tokens=False))


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
        if isinstance(store, Mapping) and store in stores[:i]:
            continue  # its store would be another one
        known = store if isinstance(store, Source) else _opened(store, f"{name}[{i}]", tokenizer)
        if known not in opened:
            opened.append(known)
    return tuple(opened)


def have_entries(stores: Any) -> bool:
    """Whether the stores of a call are a list of lists, with an entry for each prompt."""
    return isinstance(stores, list | tuple) and any(isinstance(e, list | tuple) for e in stores)


def open_entries(stores: Any, usual: Any) -> list[Any]:
    """Open the stores of each prompt, or one entry for all; ``usual`` stands for None."""
    named = enumerate(stores) if have_entries(stores) else [(None, stores)]
    return [
        usual if each is None else open_stores(each, "stores" if at is None else f"stores[{at}]")
        for at, each in named
    ]


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
