"""A recorded output that is played as a row of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ngramspec.draft import Draft, Int32, Verdict, verified_nodes
from ngramspec.drafters.base import DraftSession
from ngramspec.measure.replay import Tally, accepted_path


@dataclass(slots=True)
class PlayedRow:
    """A recorded output that is played as a row of a batch.

    Attributes:
        output: int32 (n,), the text after the prompt.
        session: drafts for it; it was started with the output's first token.
        at: number of committed tokens of the output.
    """

    output: Int32
    session: DraftSession
    at: int = 1
    _recorded: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._recorded = self.output.tolist()

    @property
    def left(self) -> int:
        """Tokens that are not committed yet."""
        return len(self._recorded) - self.at

    def verify(self, draft: Draft, tally: Tally, sources: Sequence[str]) -> None:
        """Commit what the recording accepts of a draft, and its next token; count both.

        The cost is not counted. ``sources`` are those of the drafter.
        """
        path = accepted_path(draft.tokens.tolist(), draft, self._recorded, self.at)
        new = self.output[self.at : self.at + len(path) + 1]
        verified = sum(1 for _ in verified_nodes(draft, path))
        if len(draft):
            self.session.observe(draft, path, verified)
        self.session.extend(new)
        tally.count_step(draft, Verdict(path, verified, new.tolist()), sources)
        self.at += len(new)
