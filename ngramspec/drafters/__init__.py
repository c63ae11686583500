"""Drafters, and the registry that builds them from a string.

A drafter's module is imported when its class is first accessed.
"""

from typing import TYPE_CHECKING

from ngramspec.drafters.registry import build_drafter, register_drafter
from ngramspec.lazy_names import lazy_names

if TYPE_CHECKING:
    from ngramspec.drafters.headed import HeadedDrafter, MtpDrafter
    from ngramspec.drafters.known import NullDrafter, OracleDrafter, RandomDrafter
    from ngramspec.drafters.model import ModelDrafter
    from ngramspec.drafters.priority import CalibratedDrafter, PriorityDrafter
    from ngramspec.drafters.recycle import RecycleDrafter
    from ngramspec.drafters.tables import CopyDrafter, NGramDrafter, UnigramDrafter
    from ngramspec.drafters.value import StoreDrafter, ValueDrafter

# fmt: off
__all__ = [
    "CalibratedDrafter", "CopyDrafter", "HeadedDrafter", "ModelDrafter",
    "MtpDrafter", "NGramDrafter", "NullDrafter", "OracleDrafter",
    "PriorityDrafter", "RandomDrafter", "RecycleDrafter", "StoreDrafter", "UnigramDrafter",
    "ValueDrafter", "build_drafter", "register_drafter",
]
# fmt: on
__getattr__ = lazy_names(
    __name__,
    {
        "headed": ("HeadedDrafter", "MtpDrafter"),
        "known": ("NullDrafter", "OracleDrafter", "RandomDrafter"),
        "model": ("ModelDrafter",),
        "recycle": ("RecycleDrafter",),
        "priority": ("CalibratedDrafter", "PriorityDrafter"),
        "tables": ("CopyDrafter", "NGramDrafter", "UnigramDrafter"),
        "value": ("StoreDrafter", "ValueDrafter"),
    },
)
