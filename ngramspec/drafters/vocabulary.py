"""Whether a draft model has the target's tokenizer."""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path
from typing import Any

from ngramspec.stores.base import fingerprint

logger = logging.getLogger("ngramspec")


def same_vocabulary(one: Any, other: Any) -> bool | None:
    """Whether every id has the same piece in two tokenizers; None: one of them is not known.

    A tokenizer is given as an object or as the path of its tokenizer.json. None is not known, and a
    file that cannot be read is not, either.
    """
    if one is not None and one is other:
        return True
    own, others = _fingerprint_of(one), _fingerprint_of(other)
    return None if own is None or others is None else own == others


def _fingerprint_of(tokenizer: Any) -> str | None:
    if not isinstance(tokenizer, Path):
        return None if tokenizer is None else fingerprint(tokenizer)
    try:
        state = tokenizer.stat()
    except OSError:
        return None
    return _fingerprint_of_file(str(tokenizer), state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=64)
def _fingerprint_of_file(path: str, modified: int, size: int) -> str | None:
    """The fingerprint of a tokenizer.json, by the time and size that tell its versions apart."""
    from tokenizers import Tokenizer

    try:
        return fingerprint(Tokenizer.from_file(path))
    except Exception as error:  # tokenizers raises no narrower class
        logger.warning("the tokenizer in %s cannot be read: %r", path, error)
        return None
