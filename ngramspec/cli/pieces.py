"""The text of draft and target tokens, decoded step by step, and the outcome of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ngramspec import StepEvent
from ngramspec.cli.output import printable
from ngramspec.server.text import REPLACEMENT_CHARACTER, Detokenizer

ACCEPTED, REJECTED, CORRECTED, PLAIN = "accepted", "rejected", "corrected", "plain"

Piece = tuple[str, str]  # outcome of a token (one of the above), and its text


class Pieces:
    """The text of each step's tokens after the prompt ``ids``, decoded step by step.

    A token whose text depends on the next tokens, as it ends inside a character, has no text. The
    token that decides it has all of it.
    """

    def __init__(self, tokenizer: Any, ids: Sequence[int]) -> None:
        self._text = Detokenizer(tokenizer, ids)
        self._kind = PLAIN  # of the last token

    def of(self, event: StepEvent) -> list[Piece]:
        """The drafted and emitted tokens of a step, in order.

        It contains only the rejected token that was replaced, not its children or siblings.
        """
        verdict = event.verdict
        accepted = len(verdict.accepted)
        pieces = [(ACCEPTED, self._add(token)) for token in verdict.emitted[:accepted]]
        if verdict.rejected is not None:
            text = printable(self._text.peek((event.drafted[verdict.rejected],)))
            pieces.append((REJECTED, text.strip(REPLACEMENT_CHARACTER)))
        kind = PLAIN if verdict.rejected is None else CORRECTED
        pieces += [(kind, self._add(token)) for token in verdict.emitted[accepted:]]
        self._kind = pieces[-1][0] if pieces else self._kind
        return [(kind, text) for kind, text in pieces if text]

    def end(self) -> list[Piece]:
        """The text that was undecided after the last step."""
        text = printable(self._text.add((), last=True))
        return [(self._kind, text)] if text else []

    def _add(self, token: int) -> str:
        return printable(self._text.add((token,)))
