"""Knowledge that outlives a request: corpora on disk."""

from ngramspec.stores.corpus import Corpus
from ngramspec.stores.file_format import StoreFileError

__all__ = ["Corpus", "StoreFileError"]
