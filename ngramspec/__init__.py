"""Speculative decoding without a draft model: the same text, in fewer target calls.

``Speculator``, ``generate`` and ``enabled`` need torch and transformers, and are loaded when they
are first asked for. All else works without.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from ngramspec.draft import Draft, Evidence, EvidenceRequest, Proposal, Verdict
from ngramspec.drafters import build_drafter, register_drafter
from ngramspec.drafters.base import Drafter, DraftSession
from ngramspec.errors import UnsupportedError
from ngramspec.stats import DecodeStats, StepEvent
from ngramspec.stores import Corpus, SharedStore

if TYPE_CHECKING:
    from ngramspec.enabling import enabled
    from ngramspec.hf import generate
    from ngramspec.speculator import Speculator

__version__ = version("ngramspec")
# fmt: off
__all__ = [
    "Corpus", "DecodeStats", "Draft", "DraftSession", "Drafter", "Evidence", "EvidenceRequest",
    "Proposal", "SharedStore", "Speculator", "StepEvent", "UnsupportedError", "Verdict",
    "build_drafter", "enabled", "generate", "register_drafter",
]
# fmt: on
_LAZY = {"Speculator": "speculator", "generate": "hf", "enabled": "enabling"}


def __getattr__(name: str) -> Any:
    """Load what stands on torch, at first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(import_module(f"ngramspec.{_LAZY[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name not in ("torch", "transformers"):
            raise
        raise ModuleNotFoundError(
            f"ngramspec.{name} needs {error.name}: pip install torch transformers", name=error.name
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
