"""Knowledge that outlives a request: corpora on disk, and the output of earlier requests.

A store's module is loaded when its class is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ngramspec.stores.corpus import Corpus
    from ngramspec.stores.file_format import StoreFileError
    from ngramspec.stores.shared import Namespace, SharedStore, StoreStatistics

__all__ = ["Corpus", "Namespace", "SharedStore", "StoreFileError", "StoreStatistics"]
_MODULES = {
    "Corpus": "corpus",
    "Namespace": "shared",
    "SharedStore": "shared",
    "StoreFileError": "file_format",
    "StoreStatistics": "shared",
}


def __getattr__(name: str) -> Any:
    """Load a store's module at first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
