"""Drafters, one per file, and the registry that builds them from a string.

A drafter's module is imported when its class is first accessed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ngramspec.drafters.registry import build_drafter, register_drafter

if TYPE_CHECKING:
    from ngramspec.drafters.calibrated import CalibratedDrafter
    from ngramspec.drafters.copy import CopyDrafter
    from ngramspec.drafters.headed import HeadedDrafter
    from ngramspec.drafters.heads import EarlyExitDrafter, MtpDrafter
    from ngramspec.drafters.known import OracleDrafter, RandomDrafter
    from ngramspec.drafters.model import ModelDrafter
    from ngramspec.drafters.ngram import NGramDrafter
    from ngramspec.drafters.null import NullDrafter
    from ngramspec.drafters.recycle import RecycleDrafter
    from ngramspec.drafters.tiers import TieredDrafter
    from ngramspec.drafters.unigram import UnigramDrafter
    from ngramspec.drafters.value import StoreDrafter, ValueDrafter

__all__ = [
    "CalibratedDrafter",
    "CopyDrafter",
    "EarlyExitDrafter",
    "HeadedDrafter",
    "ModelDrafter",
    "MtpDrafter",
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
_MODULES = {
    "CalibratedDrafter": "calibrated",
    "CopyDrafter": "copy",
    "EarlyExitDrafter": "heads",
    "HeadedDrafter": "headed",
    "ModelDrafter": "model",
    "MtpDrafter": "heads",
    "NGramDrafter": "ngram",
    "NullDrafter": "null",
    "OracleDrafter": "known",
    "RandomDrafter": "known",
    "RecycleDrafter": "recycle",
    "StoreDrafter": "value",
    "TieredDrafter": "tiers",
    "UnigramDrafter": "unigram",
    "ValueDrafter": "value",
}


def __getattr__(name: str) -> Any:
    """Import a drafter's module on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
