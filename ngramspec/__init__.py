"""Speculative decoding without a draft model: the same text, in fewer target calls."""

from importlib.metadata import version

from ngramspec.decode import StepEvent
from ngramspec.draft import DecodeStats, Draft, Drafter, DraftSession, Proposal, Verdict
from ngramspec.drafters import build_drafter, register_drafter
from ngramspec.errors import UnsupportedError
from ngramspec.hf import generate
from ngramspec.speculator import Speculator
from ngramspec.stand_in import enabled

__version__ = version("ngramspec")
# fmt: off
__all__ = [
    "DecodeStats", "Draft", "DraftSession", "Drafter", "Proposal", "Speculator", "StepEvent",
    "UnsupportedError", "Verdict", "build_drafter", "enabled", "generate", "register_drafter",
]
