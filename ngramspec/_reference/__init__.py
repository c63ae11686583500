"""The plain-Python twin of each native structure: oracle and readable documentation."""

from ngramspec._reference.batch_choice import (
    generous_cost,
    may_pay,
    worthwhile_heads,
)
from ngramspec._reference.common import context_key
from ngramspec._reference.copyindex import CopyIndex, longest_repeated_suffix
from ngramspec._reference.ngram import NGramTable
from ngramspec._reference.row_text import TokenText
from ngramspec._reference.unigram import UnigramCounts

__all__ = [
    "CopyIndex",
    "NGramTable",
    "TokenText",
    "UnigramCounts",
    "context_key",
    "generous_cost",
    "longest_repeated_suffix",
    "may_pay",
    "worthwhile_heads",
]
