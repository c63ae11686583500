"""Sampled verification, which keeps the target's distribution.

Deterministic drafts are verified by comparison: the token is sampled from the target's distribution
p, independently of the draft, and a draft token that equals it is accepted. This accepts a child x
with probability p(x), as Algorithm 1 of Leviathan et al. 2023 does for a one-hot q. It accepts one
of several children with the sum of their probabilities, as sampling without replacement does. One
token is sampled for each committed token and none for rejected ones. So with the same seed the text
is that of the baseline.

Stochastic drafts and lenience below 1 need Algorithm 1 itself, applied to one child after another:
see ``speculative_tokens``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ngramspec.draft import Draft

Noise = Callable[[Tensor], Tensor]  # from probabilities to exponential random numbers


def speculative_tokens(
    target_probs: Tensor,
    children: Tensor,
    draft_probs: Tensor | None,
    lenience: float = 1.0,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Algorithm 1 of Leviathan et al. 2023 at m positions, over the children of each.

    The first child x, sampled from q, is accepted with probability min(1, p(x) / (l q(x))). After a
    rejection p becomes the residual, max(0, p/l - q) normalised, and the next child is tried, which
    was sampled from its own q (iterative sampling: Stratos, section 2; SpecInfer). After the last
    child the token is sampled from the residual, in which rejected children have probability 0. So
    the token shows which child was accepted.

    With lenience l = 1 the token has exactly the distribution p. With l < 1 no token's probability
    exceeds p/l (Leviathan et al., A.5). For one child: let B be the sum of min(q, p/l), the
    probability of acceptance. The residual's mass is 1/l - B >= 1 - B. So the probability of x is
    min(q, p/l) + (1 - B) / (1/l - B) * max(0, p/l - q) <= min(q, p/l) + max(0, p/l - q) = p/l.
    For more children, the distribution after the first rejection replaces the residual. By
    induction its probability of x is at most max(0, p/l - q) / (1/l - B) / l. The same bound
    follows from (1 - B) / (1/l - B) / l = (1 - B) / (1 - l B) <= 1.

    If the residual has no mass (p = q up to rounding), the rejection had a probability of the order
    of the rounding, and the token is sampled from the distribution before the rejection.

    Args:
        target_probs: float32 (m, vocab), p.
        children: int64 (m, k), in the order sampled, padded with -1.
        draft_probs: float32 (k, m, vocab), the q of each child, in which the children before it
            have probability 0. None: the children are deterministic, and q is one-hot at each.
        lenience: l in (0, 1].
        generator: random generator; None: torch's global one.

    Returns:
        int64 (m,): the accepted child or the recovered token; without children a sample of p.
    """
    p, token = target_probs, children.new_full(children.shape[:1], -1)
    for which, x in enumerate(children.unbind(dim=1)):
        q = None if draft_probs is None else draft_probs[which]
        index = x.clamp(min=0)[:, None]
        uniform = torch.rand(index.shape, dtype=p.dtype, device=p.device, generator=generator)
        q_x = 1.0 if q is None else q.gather(1, index)
        open_ = (token < 0) & (x >= 0)
        accepted = open_ & (uniform * (lenience * q_x) < p.gather(1, index))[:, 0]
        token = torch.where(accepted, x, token)
        rejected = (open_ & ~accepted)[:, None]
        p = torch.where(rejected, _residual(p, q, index, lenience), p)
    return torch.where(token < 0, draw(p, generator), token)


def _residual(p: Tensor, q: Tensor | None, index: Tensor, lenience: float) -> Tensor:
    """max(0, p/l - q), normalised, or p if it has no mass. A one-hot q removes x from p."""
    rest = p.scatter(1, index, 0.0) if q is None else (p / lenience - q).clamp(min=0.0)
    mass = rest.sum(dim=1, keepdim=True)
    return torch.where(mass > 0, rest / mass.clamp(min=torch.finfo(rest.dtype).tiny), p)


def draw(
    target_probs: Tensor, generator: torch.Generator | None = None, noise: Tensor | None = None
) -> Tensor:
    """Sample the same token for each row as torch.multinomial, without its host transfers.

    torch.multinomial also samples one token as argmax p / e, with exponential e. The random numbers
    are the same. ``target_probs`` is float32 (rows, vocab), the result int64 (rows,) on its device.
    ``noise`` are the random numbers, if they have been drawn.
    """
    if noise is None:
        noise = torch.empty_like(target_probs).exponential_(generator=generator)
    return (target_probs / noise).argmax(dim=-1)


class DeviceGenerator:
    """The state of the generator that torch uses on an accelerator if it is given none."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._module = device, torch.get_device_module(device)

    def get_state(self) -> Tensor:
        state: Tensor = self._module.get_rng_state(self._device)
        return state

    def set_state(self, state: Tensor) -> None:
        self._module.set_rng_state(state, self._device)


def default_generator(device: torch.device) -> torch.Generator | DeviceGenerator:
    """The generator that torch uses on a device if it is given none."""
    return torch.default_generator if device.type == "cpu" else DeviceGenerator(device)


class BatchNoise:
    """The random numbers with which the baseline samples a batch, of which each is drawn once.

    At each depth, which is the number of tokens generated before, the baseline draws the numbers of
    all rows together. They are kept until ``forget`` or ``rewind``.
    """

    def __init__(self, rows: int, generator: torch.Generator | None) -> None:
        self._rows, self._generator = rows, generator
        self._first = 0  # the depth of the first of ``_noise``
        self._noise: list[Tensor] = []  # float32 (rows, vocab), by depth
        self._states: list[Tensor] = []  # of the generator, before each of them and after the last
        self._used: torch.Generator | DeviceGenerator | None = None

    def along(self, done: Sequence[int], drafts: Sequence[Draft], positions: int) -> Noise:
        """The numbers at all positions of a forward, for rows that have ``done`` tokens each.

        Padding, of which no token is used, has those of the first position.
        """
        depths = ([0, *draft.depths(), *[0] * (positions - 1 - len(draft))] for draft in drafts)
        rows = enumerate(zip(done, depths, strict=True))
        return partial(self.of, places=[(at, n + more) for at, (n, own) in rows for more in own])

    def of(self, probs: Tensor, places: Sequence[tuple[int, int]]) -> Tensor:
        """The exponential noise of rows at depths, float32 (m, vocab), for ``probs`` (m, vocab)."""
        self._used = self._used or self._generator or default_generator(probs.device)
        if not self._noise:
            self._states = [self._used.get_state()]
        while self._first + len(self._noise) <= max(depth for _, depth in places):
            fresh = probs.new_empty((self._rows, probs.shape[-1]))
            self._noise.append(fresh.exponential_(generator=self._generator))
            self._states.append(self._used.get_state())
        own = ((row, max(depth - self._first, 0)) for row, depth in places)  # 0: of ended rows
        return torch.stack([self._noise[at][row] for row, at in own])

    def forget(self, depth: int) -> None:
        """Drop what is before a depth."""
        passed = max(depth - self._first, 0)
        del self._noise[:passed], self._states[:passed]
        self._first += passed

    def rewind(self, depth: int) -> None:
        """Set the generator to the baseline's state at a depth, unless others have used it, too."""
        at = depth - self._first
        if self._used is not None and 0 <= at < len(self._states) - 1:
            if torch.equal(self._used.get_state(), self._states[-1]):
                self._used.set_state(self._states[at])
            del self._noise[at:], self._states[at + 1 :]
        self.forget(depth)
