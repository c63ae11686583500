"""The text of draft and target tokens, decoded step by step, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec import StepEvent

ACCEPTED, REJECTED, CORRECTED, PLAIN = "accepted", "rejected", "corrected", "plain"

Piece = tuple[str, str]  # outcome of a token (one of the above), and its text


class Pieces:
    """The text of each step's tokens, decoded step by step.

    A token that ends inside a character has no text. The token that completes the character has
    all of it. Only the last few tokens are decoded again, so the cost of a step does not depend on
    the length.

    Args:
        tokenizer: the model's tokenizer.
        ids: the prompt.
    """

    CONTEXT = 8  # tokens decoded together with new ones, so that leading spaces are kept

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._known = list(ids[-self.CONTEXT :])
        self._pending: list[int] = []

    def of(self, event: StepEvent) -> list[Piece]:
        """The drafted and emitted tokens of a step, in order.

        It contains only the rejected token that was replaced, not its children or siblings.
        """
        verdict = event.verdict
        accepted = len(verdict.accepted)
        pieces = [(ACCEPTED, self._commit(token)) for token in verdict.emitted[:accepted]]
        if verdict.rejected is not None:
            token = event.drafted[verdict.rejected]
            pieces.append((REJECTED, self._text([token]).strip("\ufffd")))
        kind = PLAIN if verdict.rejected is None else CORRECTED
        pieces += [(kind, self._commit(token)) for token in verdict.emitted[accepted:]]
        return [(kind, text) for kind, text in pieces if text]

    def _commit(self, token: int) -> str:
        text = self._text([token])
        self._pending.append(token)
        if text.endswith("\ufffd"):
            return ""
        self._known = (self._known + self._pending)[-self.CONTEXT :]
        self._pending = []
        return text

    def _text(self, tokens: list[int]) -> str:
        known = self._decode(self._known)
        return printable(self._decode(self._known + self._pending + tokens)[len(known) :])

    def _decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


def printable(text: str) -> str:
    """``text`` with tabs as spaces and without control characters except the newline."""
    text = text.replace("\r\n", "\n").expandtabs(4)
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in text)
