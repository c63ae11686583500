"""Knowledge that outlives a request: corpora on disk, and the output of earlier requests.

A store's module is loaded when its class is first asked for.
"""

from typing import TYPE_CHECKING

from ngramspec.lazy_names import lazy_names

if TYPE_CHECKING:
    from ngramspec.stores.corpus import Corpus
    from ngramspec.stores.files import StoreFileError
    from ngramspec.stores.shared import Namespace, SharedStore, StoreStatistics

__all__ = ["Corpus", "Namespace", "SharedStore", "StoreFileError", "StoreStatistics"]
__getattr__ = lazy_names(
    __name__,
    {
        "corpus": ("Corpus",),
        "files": ("StoreFileError",),
        "shared": ("Namespace", "SharedStore", "StoreStatistics"),
    },
)
