"""Drafters, one per file, and the registry that builds them from a string."""

from ngramspec.drafters.calibrated import CalibratedDrafter
from ngramspec.drafters.copy import CopyDrafter
from ngramspec.drafters.known import OracleDrafter, RandomDrafter
from ngramspec.drafters.model import ModelDrafter
from ngramspec.drafters.ngram import NGramDrafter
from ngramspec.drafters.null import NullDrafter
from ngramspec.drafters.recycle import RecycleDrafter
from ngramspec.drafters.registry import build_drafter, register_drafter
from ngramspec.drafters.tiers import TieredDrafter
from ngramspec.drafters.unigram import UnigramDrafter
from ngramspec.drafters.value import StoreDrafter, ValueDrafter

__all__ = [
    "CalibratedDrafter",
    "CopyDrafter",
    "ModelDrafter",
    "NGramDrafter",
    "NullDrafter",
    "OracleDrafter",
    "RandomDrafter",
    "RecycleDrafter",
    "StoreDrafter",
    "TieredDrafter",
    "UnigramDrafter",
    "ValueDrafter",
    "build_drafter",
    "register_drafter",
]
