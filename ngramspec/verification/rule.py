"""The verification rule: chooses a position's token from its scores and draft tokens.

``rejection.py`` has Algorithm 1. Lenient greedy verification and typical acceptance are here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ngramspec.draft import Draft, Float32, Int32
from ngramspec.hf_model.compat.devices import sent
from ngramspec.verification.rejection import (
    Noise,
    draw,
    speculative_tokens,
)


@dataclass(frozen=True, slots=True)
class Rule:
    """How the target's tokens are chosen, unless they are the argmax.

    Attributes:
        do_sample: whether to sample from the distribution or to take the most probable token.
        verification: "match": by the target's distribution alone. "exact": likewise, but by
            Algorithm 1 for stochastic drafts. "typical": by typical acceptance.
        lenience: in (0, 1], for "exact"; below 1 the text's distribution is not the target's.
        epsilon: for "typical", the highest threshold.
        delta: for "typical", the factor of the threshold that decreases with the entropy.
        generator: random generator; None: torch's global one.
    """

    do_sample: bool
    verification: str = "exact"
    lenience: float = 1.0
    epsilon: float = 0.09
    delta: float = 0.3
    generator: torch.Generator | None = None

    @property
    def exact(self) -> bool:
        """Whether the text (greedy) or its distribution (sampled) is the target's."""
        return self.verification != "typical" and self.lenience == 1.0

    def ignores(self, draft: Draft) -> bool:
        """Whether the token is independent of the draft, and is only compared with it."""
        stochastic = draft.proposal is not None and self.do_sample and self.verification == "exact"
        return self.exact and not stochastic

    def choose(
        self, scores: Tensor, spots: Sequence[tuple[Draft, int]], noise: Noise | None = None
    ) -> Tensor:
        """Choose the tokens at m positions of drafts' forwards, int64 (m,).

        A token that equals one drafted there accepts it. ``scores`` is float32 (m, vocab), and
        ``noise`` returns random numbers for the probabilities. The result is -1 where they are no
        distribution.
        """
        probs = torch.softmax(scores, dim=-1)
        broken = torch.isnan(probs[:, 0])  # softmax makes the whole row NaN
        return self._from(probs, spots, noise).masked_fill(broken, -1)

    def _from(
        self, probs: Tensor, spots: Sequence[tuple[Draft, int]], noise: Noise | None
    ) -> Tensor:
        if all(self.ignores(draft) for draft, _ in spots):
            return draw(probs, self.generator, None if noise is None else noise(probs))
        children, draft_probs = drafted_at(spots, probs.shape[-1], probs.device)
        if self.verification == "typical":
            own = draw(probs, self.generator) if self.do_sample else probs.argmax(dim=-1)
            return typical_tokens(probs, children, self.epsilon, self.delta, own)
        if not self.do_sample:
            return lenient_tokens(probs, children, self.lenience)
        return speculative_tokens(probs, children, draft_probs, self.lenience, self.generator)


def drafted_at(
    spots: Sequence[tuple[Draft, int]], vocab: int, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """The draft tokens at m positions, int64 (m, k), padded with -1, and their distributions.

    The distributions are those of ``proposal_tensor``.
    """
    nodes = [(draft, draft.nodes(at)) for draft, at in spots]
    table = np.full((len(nodes), max((len(each) for _, each in nodes), default=0)), -1, np.int64)
    for row, (draft, each) in zip(table, nodes, strict=True):
        row[: len(each)] = draft.tokens[list(each)]
    children = sent(torch.from_numpy(table), device)
    return children, proposal_tensor(nodes, vocab, device)


def lenient_tokens(target_probs: Tensor, children: Tensor, lenience: float) -> Tensor:
    """The most probable drafted child x with p(x) >= lenience * max p; else the argmax.

    See Leviathan et al. 2023, A.5. Lenience 1 accepts the argmax and tokens that tie with it.
    """
    best, argmax = target_probs.max(dim=-1)
    return best_child(target_probs, children, lenience * best, argmax)


def best_child(
    target_probs: Tensor, children: Tensor, threshold: Tensor, otherwise: Tensor
) -> Tensor:
    """The most probable child that reaches the threshold; of equal ones the first; int64 (m,).

    ``target_probs`` is float32 (m, vocab), ``children`` int64 (m, k), padded with -1, ``otherwise``
    int64 (m,).
    """
    if children.shape[1] == 0:
        return otherwise
    probs = target_probs.gather(1, children.clamp(min=0)).masked_fill(children < 0, -1.0)
    best, which = probs.max(dim=-1)
    child = children.gather(1, which[:, None])[:, 0]
    return torch.where(best >= threshold, child, otherwise)


def typical_tokens(
    target_probs: Tensor, children: Tensor, epsilon: float, delta: float, otherwise: Tensor
) -> Tensor:
    """Typical acceptance: the most probable child that reaches a threshold, else ``otherwise``.

    The threshold min(epsilon, delta * exp(-H(p))) decreases with the entropy H, in nats, of the
    target's distribution (Medusa, Cai et al. 2024, section 2.3.1). So if many tokens are plausible,
    less probable ones are accepted. The text's distribution is no longer the target's. The other
    arguments and the result are those of ``best_child``.
    """
    entropy = torch.special.entr(target_probs).sum(dim=-1)
    threshold = (delta * torch.exp(-entropy)).clamp(max=epsilon)
    return best_child(target_probs, children, threshold, otherwise)


def proposal_tensor(
    drafts: Sequence[tuple[Draft, Sequence[int]]], vocab: int, device: torch.device
) -> Tensor | None:
    """The distributions of m positions' children, each given those before, float32 (k, m, vocab).

    None: there are no children, or all are deterministic.
    """
    longest = max((len(nodes) for _, nodes in drafts), default=0)
    if not longest or all(draft.proposal is None for draft, _ in drafts):
        return None
    given = [[_given_before(draft, nodes, at) for draft, nodes in drafts] for at in range(longest)]
    return torch.stack([_dense(rows, vocab, device) for rows in given])


Sparse = tuple[Int32, Float32]  # ids and probabilities


def _dense(rows: Sequence[Sparse | None], vocab: int, device: torch.device) -> Tensor:
    """Sparse distributions as float32 (m, vocab); zeros for None."""
    places, values = [np.zeros(0, np.int64)], [np.zeros(0, np.float32)]
    for row, stated in enumerate(rows):
        if stated is not None:
            places.append(row * vocab + stated[0].astype(np.int64))
            values.append(stated[1])
    table = torch.zeros(len(rows) * vocab, dtype=torch.float32, device=device)
    where = sent(torch.from_numpy(np.concatenate(places)), device)
    table[where] = sent(torch.from_numpy(np.concatenate(values)), device)
    return table.view(len(rows), vocab)


def _stated(draft: Draft, node: int) -> Sparse:
    """The distribution that a node's draft states for it; one-hot if deterministic."""
    if draft.proposal is None:
        return draft.tokens[node : node + 1], np.ones(1, np.float32)
    return draft.proposal.of(node)


def _given_before(draft: Draft, nodes: Sequence[int], at: int) -> Sparse | None:
    """The distribution of the ``at``-th sibling given those before it, or None without one."""
    if at >= len(nodes):
        return None
    ids, probs = _stated(draft, nodes[at])
    left = ~np.isin(ids, draft.tokens[list(nodes[:at])])
    if left.all():
        return ids, probs
    return ids[left], probs[left] / probs[left].sum(dtype=np.float64).astype(np.float32)
