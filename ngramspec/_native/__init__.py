"""Native structures: Cython over flat C arrays, NumPy at the boundary."""

from ngramspec.lazy_names import lazy_names

__getattr__ = lazy_names(
    __name__,
    {
        "common": ("MOST_TOKENS", "NoSection", "TokenStructure", "salt"),
        "copyindex": ("CopyIndex",),
        "corrections": ("Comparison", "Corrections"),
        "ngram": ("NGramTable",),
        "rows": (
            *("TokenText", "agreed", "best_prefix_lengths", "generous_cost", "may_pay"),
            *("sound_chain", "text_hash"),
        ),
        "store_corpus": ("STRIDE", "CorpusIndex", "check_corpus", "keys"),
        "store_ring": (
            *("BYTES_PER_CODE", "LEAST_CODES", "WRITTEN_AGAIN", "StoreRing", "StoreStream"),
        ),
        "store_source": ("BEGINNINGS", "BORDER", "StorePair", "StoreSource"),
        "value": ("Calibration", "StorePrior", "ValueEngine"),
    },
)
