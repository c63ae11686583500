"""Beams: rows in lock-step, each of which may continue another row at every step.

Beam steps are replayed on the logits of one forward over all beams' drafts, position by position.
The replay continues while every selected beam continues a drafted path, because then the forward
has the next logits. Each beam's draft continues that beam, so the keys and values of a new beam all
lie in one row of the forward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ngramspec.decoding.beams.branches import KnownTokens, look_ahead
from ngramspec.decoding.beams.search import BeamSearch
from ngramspec.decoding.group import Group
from ngramspec.decoding.observer import Section
from ngramspec.draft import Verdict
from ngramspec.verification.cursor import DraftCursor
from ngramspec.verification.sampler import TokenSampler


@dataclass(frozen=True, slots=True)
class Path:
    """A beam's path through the last forward.

    Attributes:
        row: its row in the forward.
        position: the position in the row with the beam's next logits; None: there are none.
        accepted: the positions before that one, in order.
        tokens: the tokens that the beam committed.
    """

    row: int
    position: int | None = 0
    accepted: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()

    def with_token(self, token: int, cursor: DraftCursor) -> Path:
        """The path extended by one token; ``position`` must not be None."""
        assert self.position is not None
        node = cursor.node_with(token, self.position)
        accepted, tokens = (*self.accepted, self.position), (*self.tokens, token)
        return Path(self.row, None if node is None else node + 1, accepted, tokens)


class BeamGroup(Group):
    """The beams of all prompts of a batch.

    ``prompt`` is (rows, length), each prompt once for each beam. ``branches``: whether to keep the
    known next tokens of the beams.

    Attributes:
        paths: the beams' paths through the last forward.
        known: for each beam the most probable next tokens after it and after its draft tokens, by
            the last forward.
    """

    def __init__(
        self,
        prompt: torch.Tensor,
        sampler: TokenSampler,
        search: BeamSearch,
        section: Section,
        *,
        branches: bool,
    ) -> None:
        super().__init__(range(len(prompt)), prompt, sampler, section)
        self.search = search
        self.paths: list[Path] = []
        self.known: list[KnownTokens] = [{} for _ in self.rows]
        self._branches = branches
        self._kept: list[tuple[int, ...]] = []
        self._continued: list[int] = []  # the beam that each new beam of the last step continues
        self._reached: list[Path] = []  # the beams' paths before each step

    def ids(self) -> torch.Tensor:
        """The tokens of the beams, int64 (rows, length), on the prompt's device."""
        return self.search.ids()

    def sequences(self) -> torch.Tensor:
        """The best finished sequences, int64 (batch * returned, longest)."""
        return self.search.result().ids

    def begin_step(self) -> None:
        """Reset what is known about the last forward."""
        super().begin_step()
        self.origins, self.paths = (), [Path(row) for row in self.rows]
        self._kept, self._reached = [], []

    @property
    def accepted_paths(self) -> Sequence[Sequence[int]]:
        """Each beam's accepted positions in the row that it continues."""
        return self._kept or [()] * len(self.rows)

    def reach(self) -> None:
        """Accept the positions whose logits the next step reads, also if that step raises."""
        super().reach()
        reads = [(path.accepted, path.position) for path in self.paths]
        self._keep([(*before, at) for before, at in reads if at is not None])

    def _keep(self, accepted: list[tuple[int, ...]]) -> None:
        """Set the positions of each beam's row that the cache keeps."""
        self.origins, self._kept = [path.row for path in self.paths], accepted

    def step(self, logits: torch.Tensor) -> list[int]:
        """Run one beam step on a forward's logits, (rows, n + 1, vocab); return the beams' tokens.

        ``take`` then moves the beams' paths.
        """
        at = torch.tensor([(path.row, path.position) for path in self.paths], device="cpu")
        rows, positions = at.to(logits.device, non_blocking=True).unbind(dim=1)
        own = logits[rows, positions].to(copy=True, dtype=torch.float32, device=self.device)
        log_probs = torch.log_softmax(own, dim=-1)
        if self.sampler.processors:
            log_probs = self.sampler.process(self.ids(), log_probs)
        self.sampler.record(log_probs, own)
        self._continued, tokens = self.search.step(log_probs, self.sampler.scores)
        return tokens

    def take(self, tokens: list[int]) -> None:
        """Continue the beams that the step selected, while every beam has its next logits."""
        self._reached += self.paths
        self.paths = [
            self.paths[origin].with_token(token, self.cursors[self.paths[origin].row])
            for origin, token in zip(self._continued, tokens, strict=True)
        ]
        self._keep([path.accepted for path in self.paths])
        self.last = tokens
        self.length = self.search.length
        if self.search.stopped:
            self.end_rows([True] * len(self.rows))
        more = not self.stopped and all(path.position is not None for path in self.paths)
        self.position = len(self.accepted_positions) if more else None

    def keep_known(self, logits: torch.Tensor) -> None:
        """Keep the most probable next tokens by a forward's unused logits, for branches."""
        if self._branches and not self.stopped:
            ends = [(path.row, path.position) for path in self.paths]
            self.known = look_ahead(ends, self.cursors, logits)

    def verdicts(self) -> list[Verdict]:
        """Each row's verdict.

        ``emitted`` belongs to the best beam that continues the row. If none does, it belongs to the
        beam that now has the row's index.
        """
        return [self._verdict(row, self.cursors[row]) for row in self.rows]

    def _verdict(self, row: int, cursor: DraftCursor) -> Verdict:
        best = next((path for path in self.paths if path.row == row), None)
        if best is None:  # no beam continues the row: use the longest path in it
            last = [path for path in self._reached if path.row == row][-1]
            accepted = [position - 1 for position in (*last.accepted, last.position) if position]
            position, matched, emitted = last.position, False, self.paths[row].tokens
        else:
            accepted = [position - 1 for position in best.accepted if position]
            position, matched = best.accepted[-1], best.position is not None
            emitted = best.tokens
        assert position is not None
        nodes = () if matched else cursor.nodes(position)
        rejected = nodes[0] if nodes else None
        return Verdict(accepted, len(accepted) + len(nodes), emitted, rejected)
