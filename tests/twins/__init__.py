"""The plain-Python twin of each native structure: oracle and readable documentation."""

from tests.twins.batch_choice import (
    generous_cost,
    may_pay,
    worthwhile_heads,
)
from tests.twins.common import context_key
from tests.twins.copyindex import CopyIndex, longest_repeated_suffix
from tests.twins.ngram import NGramTable
from tests.twins.row_text import TokenText
from tests.twins.unigram import UnigramCounts

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
