"""Speculative decoding without a draft model: fewer target calls, and the same text in float32.

Every public name is loaded at its first use. ``generate``, ``enable`` and a call of a
``Speculator`` need torch and transformers; all others need NumPy. Without these packages
``ngramspec`` can be imported, and the command ``ngramspec`` can print its help.
"""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ngramspec.lazy_names import lazy_names

if TYPE_CHECKING:
    from ngramspec.draft import Draft, Evidence, EvidenceRequest, Proposal, Verdict
    from ngramspec.drafters import build_drafter, register_drafter
    from ngramspec.drafters.base import Drafter, DraftSession
    from ngramspec.drafters.tool_calls import ToolCalls
    from ngramspec.errors import UnsupportedError
    from ngramspec.hf import Enabled, disable, enable, generate
    from ngramspec.many import generate_many
    from ngramspec.speculator import Speculator
    from ngramspec.stats import DecodeStats, StepEvent
    from ngramspec.stores import Corpus, SharedStore

try:
    __version__ = version("ngramspec")
except PackageNotFoundError:  # a source tree that was built in place
    __version__ = "0"
# fmt: off
__all__ = [
    "Corpus", "DecodeStats", "Draft", "DraftSession", "Drafter", "Enabled", "Evidence",
    "EvidenceRequest", "Proposal", "SharedStore", "Speculator", "StepEvent", "ToolCalls",
    "UnsupportedError", "Verdict", "build_drafter", "disable", "enable", "generate",
    "generate_many", "register_drafter",
]
# fmt: on
__getattr__ = lazy_names(
    __name__,
    {
        "draft": ("Draft", "Evidence", "EvidenceRequest", "Proposal", "Verdict"),
        "drafters": ("build_drafter", "register_drafter"),
        "drafters.base": ("DraftSession", "Drafter"),
        "drafters.tool_calls": ("ToolCalls",),
        "errors": ("UnsupportedError",),
        "hf": ("Enabled", "disable", "enable", "generate"),
        "many": ("generate_many",),
        "speculator": ("Speculator",),
        "stats": ("DecodeStats", "StepEvent"),
        "stores": ("Corpus", "SharedStore"),
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
