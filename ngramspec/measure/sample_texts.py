"""The package's own prompts: those of the demo, and the default of ``ngramspec bench``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class SampleText:
    """A prompt to continue."""

    name: str
    title: str
    prompt: str  # without a newline at its end
    task: str = ""  # as which ``ngramspec bench`` reports it
    chat: bool = True  # whether it is a user's message, not a text to continue as it is


def demo_texts() -> list[SampleText]:
    """The four texts of the demo."""
    return [
        SampleText("summarize", "Summarize an article", _read("summarize.txt"), "summarization"),
        SampleText("answer", "Answer from a context", _read("answer.txt"), "context_qa"),
        SampleText("code", "Go on with code", _read("code.py.txt"), "code_completion", chat=False),
        SampleText("rewrite", "Rewrite a file", _read("rewrite.txt"), "code_edit"),
    ]


def sample_texts() -> list[SampleText]:
    """The demo's texts and a letter to answer."""
    return [*demo_texts(), SampleText("chat", "Answer a letter", _read("chat.txt"), "chat")]


def _read(name: str) -> str:
    path = files("ngramspec.measure") / "data" / name
    return path.read_text(encoding="utf-8").rstrip("\n")
