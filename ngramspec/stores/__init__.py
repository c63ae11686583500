"""Knowledge that outlives a request: corpora on disk, and what earlier requests said."""

from ngramspec.stores.corpus import Corpus
from ngramspec.stores.file_format import StoreFileError
from ngramspec.stores.shared import Namespace, SharedStore, StoreStatistics

__all__ = ["Corpus", "Namespace", "SharedStore", "StoreFileError", "StoreStatistics"]
