"""How a generation's tokens are chosen, and what is told and kept of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.draft import Draft
from ngramspec.rng import default_generator
from ngramspec.verification.draws import draw_at_depths
from ngramspec.verification.greedy import Tokens, greedy_tokens
from ngramspec.verification.rule import Rule, children_tensor, proposal_tensor
from ngramspec.verification.stopping import StopRules


@dataclass(slots=True)
class Record:
    """Scores and logits per generated token, where they were asked for.

    Attributes:
        scores: processed scores, float32 (batch, vocab) each, or None.
        logits: raw logits, float32 (batch, vocab) each, or None.
    """

    scores: list[torch.Tensor] | None = None
    logits: list[torch.Tensor] | None = None

    def __bool__(self) -> bool:
        """Whether anything is kept."""
        return self.scores is not None or self.logits is not None


class DraftCursor:
    """A draft as the verifier goes through it, from position to position of its forward.

    Position 0 is behind the last committed token, position i + 1 behind node i.
    """

    __slots__ = ("_children", "draft", "tokens")

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self.tokens: list[int] = draft.tokens.tolist()
        self._children = None if draft.parents is None else draft.children()

    def nodes(self, position: int) -> Sequence[int]:
        """The nodes drafted at a position; siblings in order."""
        if self._children is not None:
            return self._children[position]
        return (position,) if position < len(self.tokens) else ()

    def drafted(self, position: int) -> list[int]:
        """Their tokens."""
        return [self.tokens[node] for node in self.nodes(position)]

    def depths(self, positions: int) -> list[int]:
        """How many drafted tokens lead to each of the forward's positions."""
        if self.draft.parents is None:
            return list(range(positions))
        depths = [0]
        for parent in self.draft.parents.tolist():
            depths.append(depths[parent + 1] + 1)
        return depths


@dataclass(frozen=True, slots=True)
class SampledTokens:
    """The tokens of all positions of a forward, chosen at once.

    Attributes:
        tokens: for each row one for each position.
        states: the generator's behind each depth's draw, or None.
        generator: whose they are.
    """

    tokens: Sequence[Tokens]
    states: list[torch.Tensor] | None = None
    generator: torch.Generator | None = None

    def rewind(self, drawn: int) -> None:
        """Set the generator back to where ``drawn`` >= 1 draws leave it."""
        if self.states is not None and self.generator is not None and drawn < len(self.states):
            self.generator.set_state(self.states[drawn - 1])


@dataclass(frozen=True, slots=True)
class TokenSampler:
    """How tokens are chosen, and what is told of them.

    Attributes:
        processors: logits processors in order, called as ``generate`` calls them; or None.
        stop: after which token a row ends.
        rule: from scores to tokens.
        pad: what an ended row goes on with; None: whatever the target says.
        streamer: gets every token, int64 (rows,) on the host, or None.
        record: what to keep of each token.
        far: whether a transfer from the device costs more than choosing for positions in vain.
        ahead: whether the processors may be applied to all positions of a forward at once, those
            in vain included, to save transfers: their result does not depend on the history.
    """

    processors: Any
    stop: StopRules
    rule: Rule
    pad: int | None
    streamer: Any
    record: Record
    far: bool = False
    ahead: bool = False

    @property
    def at_once(self) -> bool:
        """Whether a step's tokens are had in one transfer."""
        plain = self.rule.argmax and not self.processors
        return plain or self.ahead

    def all(self, drafts: Sequence[Draft], logits: torch.Tensor) -> SampledTokens:
        """Choose at all positions of a forward.

        Args:
            drafts: each row's, n tokens at most.
            logits: (rows, n + 1, vocab).
        """
        if self.rule.argmax and not self.processors:
            return SampledTokens(greedy_tokens(logits, self.far))
        rows, positions, vocab = logits.shape
        scores = logits.to(copy=True, dtype=torch.float32).reshape(-1, vocab)
        if self.processors:
            none = torch.empty((rows * positions, 0), dtype=torch.int64, device=logits.device)
            scores = self.processors(none, scores)
        walks = [DraftCursor(draft) for draft in drafts]
        if self.rule.do_sample and all(self.rule.ignores(draft) for draft in drafts):
            return self._draw(walks, scores.view(rows, positions, vocab))
        spots = [(walk, at) for walk in walks for at in range(positions)]
        tokens = self.rule.choose(scores, *behind(spots, vocab, scores.device))
        return SampledTokens(tokens.view(rows, positions).tolist())

    def _draw(self, walks: Sequence[DraftCursor], scores: torch.Tensor) -> SampledTokens:
        positions = scores.shape[1]
        probs = torch.softmax(scores, dim=-1)
        generator = self.rule.generator or default_generator(scores.device)
        depths = max((walk.depths(positions) for walk in walks), key=len)
        tokens, states = draw_at_depths(probs, depths, generator)
        tokens = tokens.masked_fill(torch.isnan(probs[..., 0]), -1)
        return SampledTokens(tokens.tolist(), states, generator)


def behind(
    spots: Sequence[tuple[DraftCursor, int]], vocab: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What was drafted at some positions, as the rule takes it: children and their proposals."""
    nodes = [walk.nodes(at) if at <= len(walk.tokens) else () for walk, at in spots]
    tokens = [
        [walk.tokens[node] for node in each] for (walk, _), each in zip(spots, nodes, strict=True)
    ]
    first = [
        (walk.draft, each[0] if each else None)
        for (walk, _), each in zip(spots, nodes, strict=True)
    ]
    return children_tensor(tokens, device), proposal_tensor(first, vocab, device)
