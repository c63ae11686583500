"""Three ways to verify an n-gram draft under sampling: acceptance observed and by formula.

A sampled draft x ~ q is accepted by Algorithm 1 of Leviathan et al. 2023 with probability
sum min(p, q) (their Corollary 3.6), by an exact match with a sample of p with sum p q. The most
frequent token, argmax q, is accepted by either with its own p. Which is more depends on p and q:
the formulas are averaged over the very positions that Algorithm 1 tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ngramspec import Speculator, generate
from ngramspec.decoding.setup import Settings
from ngramspec.verification.rule import Rule

DRAWN, MATCHED, FREQUENT = "drawn, Algorithm 1", "drawn, exact match", "most frequent"
WAYS = (DRAWN, MATCHED, FREQUENT)


@dataclass(slots=True)
class Tally:
    """One way of verifying, over all prompts.

    Attributes:
        tested, accepted: draft tokens.
        emitted, calls: tokens, and the target's forwards that gave them.
        formulas: the probability of acceptance by each way, summed over tested positions; only of
            the way that was watched.
    """

    tested: int = 0
    accepted: int = 0
    emitted: int = 0
    calls: int = 0
    formulas: dict[str, float] = field(default_factory=dict)

    @property
    def alpha(self) -> float:
        """Accepted / tested."""
        return self.accepted / max(self.tested, 1)

    @property
    def tokens_per_call(self) -> float:
        """Emitted / calls."""
        return self.emitted / max(self.calls, 1)

    def formula(self, way: str) -> float:
        """The mean probability of acceptance."""
        return self.formulas.get(way, 0.0) / max(self.tested, 1)


@dataclass(frozen=True, slots=True)
class WatchedRule(Rule):
    """A rule that sums up the probability of acceptance at the tested positions."""

    sums: dict[str, float] = field(default_factory=dict)

    def choose(
        self,
        scores: torch.Tensor,
        children: torch.Tensor | None = None,
        draft_probs: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See Rule; each position has one drafted token at most."""
        if children is not None and draft_probs is not None and children.shape[1]:
            tested = children[:, 0] >= 0
            p, q = torch.softmax(scores, dim=-1)[tested], draft_probs[tested]
            chances = {
                DRAWN: torch.minimum(p, q).sum(),
                MATCHED: (p * q).sum(),
                FREQUENT: p.gather(1, q.argmax(dim=1, keepdim=True)).sum(),
            }
            for way, chance in chances.items():
                self.sums[way] = self.sums.get(way, 0.0) + float(chance)
        return Rule.choose(self, scores, children, draft_probs)


class WatchedSpeculator(Speculator):
    """A Speculator whose rule is watched.

    Attributes:
        sums: probabilities of acceptance at tested positions, summed up by way.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.sums: dict[str, float] = {}

    def settings(self) -> Settings:
        plain = super().settings()

        def rule(sample: bool, generator: torch.Generator | None) -> Rule:
            made = plain.rule(sample, generator)
            kind, bounds = made.verification, (made.lenience, made.epsilon, made.delta)
            return WatchedRule(sample, kind, *bounds, generator, self.sums)

        return replace(plain, rule=rule)


def measure(
    model: Any,
    prompts: Sequence[Sequence[int]],
    *,
    new: int,
    gamma: int,
    temperature: float,
    draft_temperature: float,
    seed: int = 0,
) -> dict[str, Tally]:
    """Sample after every prompt in each way.

    Args:
        model: a causal language model of transformers.
        prompts: token ids.
        new: tokens to sample after each.
        gamma: most tokens in a draft.
        temperature: of the target.
        draft_temperature: of the counts that drafts are sampled from.
        seed: of the first prompt; the others have the next ones.

    Returns:
        A tally for each of ``WAYS``; the first has the formulas of all.
    """
    drawing = f"ngram(sample=true,temperature={draft_temperature})"
    speculators = {
        DRAWN: WatchedSpeculator(drawing, gamma),
        MATCHED: WatchedSpeculator(drawing, gamma, verification="match"),
        FREQUENT: WatchedSpeculator("ngram(mode=backoff)", gamma),
    }
    tallies = {way: Tally() for way in WAYS}
    for way, speculator in speculators.items():
        for number, ids in enumerate(prompts):
            prompt = torch.tensor([list(ids)], device=model.device)
            torch.manual_seed(seed + number)
            generate(
                model,
                input_ids=prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=True,
                temperature=temperature,
                top_k=0,
                top_p=1.0,
                min_new_tokens=new,
                max_new_tokens=new,
                speculator=speculator,
            )
        stats = speculator.stats
        tallies[way] = Tally(
            stats.tested, stats.accepted, stats.emitted, stats.target_calls, speculator.sums
        )
    return tallies
