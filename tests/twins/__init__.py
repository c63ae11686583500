"""The plain-Python twin of each native structure: oracle and readable documentation."""

from tests.twins.common import context_key
from tests.twins.copyindex import CopyIndex, longest_repeated_suffix
from tests.twins.ngram import NGramTable
from tests.twins.rows import TokenText, best_prefix_lengths, generous_cost, may_pay

__all__ = [
    "CopyIndex",
    "NGramTable",
    "TokenText",
    "best_prefix_lengths",
    "context_key",
    "generous_cost",
    "longest_repeated_suffix",
    "may_pay",
]
