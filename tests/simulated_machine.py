"""A machine that takes simulated time, whose speed stalls, drifts and doubles; and its drafts.

Nothing here reads a clock: a step's seconds follow from a table of costs, the context's length and
a seeded speed, so that what is learned from them is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ngramspec.costs.model import ForwardKind, model_of
from ngramspec.costs.policies import PrefillDraftLength, make_controller, worthwhile_nodes
from ngramspec.costs.steps import StepCosts
from ngramspec.draft import EMPTY_DRAFT, Draft
from ngramspec.drafters import build_drafter

MOST = 64  # nodes of a draft


@dataclass(frozen=True)
class Machine:
    """What forwards cost: seconds = base(width) + slope(width) * length + that of a tree's mask.

    Attributes:
        widths: of the table.
        base: seconds at a context of 0.
        slope: seconds for each 1000 positions of context.
        tree: (seconds, seconds for each 1000 positions) more if the draft has branches.
    """

    widths: tuple[int, ...]
    base: tuple[float, ...]
    slope: tuple[float, ...]
    tree: tuple[float, float] = (0.0, 0.0)

    def seconds(self, width: int, length: int, tree: bool = False) -> float:
        return float(self.each(width, length, tree))

    def each(self, widths: npt.ArrayLike, length: int, tree: bool = False) -> np.ndarray:
        thousands = length / 1000
        base, slope = (np.interp(widths, self.widths, each) for each in (self.base, self.slope))
        more = self.tree[0] + self.tree[1] * thousands if tree else 0.0
        return base + slope * thousands + more


WIDTHS = (1, 2, 5, 11, 16, 24, 33, 65)
# SmolLM2-135M, bfloat16, two cores: measured with 500 and 4000 positions.
BASE = (0.0384, 0.0392, 0.0400, 0.0412, 0.0418, 0.0455, 0.0504, 0.0680)
ATTENTION = Machine(WIDTHS, BASE, (0.0032, 0.0060, 0.0063, 0.0069, 0.0074, 0.0090, 0.0108, 0.0180))
GENTLE = (0.0034, 0.0036, 0.0040, 0.0044, 0.0053, 0.0065, 0.0110)  # from two positions on
# Its shape, but forwards with branches take 15 ms more at 4000 positions.
COSTLY_TREES = Machine(WIDTHS, BASE, (0.0032, *GENTLE), (0.0, 0.0037))
# A forward of one position takes longer than one of two, as with torch's bfloat16 attention.
SLOW_FIRST = Machine(WIDTHS, BASE, (0.0100, *GENTLE))
FLAT = Machine(WIDTHS, (0.02,) * 8, (0.0001,) * 8)
STEEP = Machine(WIDTHS, (0.02, 0.03, 0.045, 0.07, 0.09, 0.12, 0.16, 0.3), (0.001, *(0.003,) * 7))
MACHINES = {
    "attention": ATTENTION,
    "costly trees": COSTLY_TREES,
    "slow first": SLOW_FIRST,
    "flat": FLAT,
    "steep": STEEP,
}


def quiet(rng: np.random.Generator) -> Iterator[float]:
    """Step by step, how many times longer than nominal it takes: hardly."""
    while True:
        yield float(np.exp(rng.normal(0, 0.03)))


def stalling(rng: np.random.Generator) -> Iterator[float]:
    """One step in twelve takes 2 to 10 times as long."""
    for each in quiet(rng):
        yield each * (rng.uniform(2, 10) if rng.random() < 1 / 12 else 1.0)


def drifting(rng: np.random.Generator) -> Iterator[float]:
    """The speed wanders by some 3 % a step, within a factor of 2."""
    level = 0.0
    for each in quiet(rng):
        level = float(np.clip(level + rng.normal(0, 0.03), -0.7, 0.7))
        yield each * float(np.exp(level))


def doubling(rng: np.random.Generator) -> Iterator[float]:
    """Every 15 steps or so the machine becomes twice as slow, or as fast again."""
    slow = 1.0
    for each in quiet(rng):
        if rng.random() < 1 / 15:
            slow = 3.0 - slow
        yield each * slow


def everything(rng: np.random.Generator) -> Iterator[float]:
    """It doubles, drifts and stalls, and no two steps take the same time."""
    for each in zip(stalling(rng), drifting(rng), doubling(rng), strict=False):
        yield float(np.prod(each) * np.exp(rng.normal(0, 0.05)))


CLOCKS = {each.__name__: each for each in (quiet, stalling, drifting, doubling, everything)}


def copying(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Conditional probabilities along a chain, and of a sibling of each node: a text that is
    copied every other step."""
    if rng.random() < 0.5:
        return np.full(40, rng.uniform(0.88, 0.97)), np.full(40, 0.01)
    return talking(rng)


def talking(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A text in which some tokens are likely, with others beside them."""
    chain = np.clip(rng.beta(1.2, 1.6, 12), 0.02, 0.95)
    return chain, (1 - chain) * rng.uniform(0.05, 0.6, 12)


def nothing(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    chain = rng.uniform(0.005, 0.06, 8)
    return chain, chain / 2


TEXTS = {each.__name__: each for each in (copying, talking, nothing)}


def tree_of(chain: np.ndarray, siblings: np.ndarray) -> tuple[Draft, np.ndarray]:
    """A tree in order of reach: a chain, and a sibling at each depth; and its nodes' reach."""
    above = np.concatenate(([1.0], np.cumprod(chain)[:-1]))
    nodes = [(above[i] * chain[i], i, True, chain[i]) for i in range(len(chain))]
    nodes += [(above[i] * siblings[i], i, False, siblings[i]) for i in range(len(chain))]
    nodes = sorted(nodes, key=lambda each: (-each[0], each[1]))[:MOST]
    place = {depth: at for at, (_, depth, main, _) in enumerate(nodes) if main}
    parents = np.array([-1 if d == 0 else place[d - 1] for _, d, _, _ in nodes], np.int32)
    confidence = np.array([p for *_, p in nodes], np.float32)
    draft = Draft(np.arange(len(nodes), dtype=np.int32), parents, confidence)
    return draft, np.array([reach for reach, *_ in nodes])


def best_rate(machine: Machine, length: int, chain: np.ndarray, tree: np.ndarray) -> np.ndarray:
    """(expected tokens, seconds) of the best of all chains, all trees and no draft.

    Args:
        chain, tree: reach of their nodes, falling.
    """
    expected, times = [np.ones(3)], [machine.each(np.arange(1, 4), length)]
    for reach, branches in ((chain, False), (tree, True)):
        expected.append(1 + np.cumsum(reach))
        times.append(machine.each(np.arange(len(reach)) + 2, length, branches))
    options = np.array((np.concatenate(expected), np.concatenate(times)))
    return options[:, np.argmax(options[0] / options[1])]


def share_of_best(
    tracker: Callable[[], object],
    machine: Machine,
    clock: Callable[[np.random.Generator], Iterator[float]],
    text: Callable[[np.random.Generator], tuple[np.ndarray, np.ndarray]],
    *,
    length: int,
    new: int = 80,
    calls: int = 4,
    seed: int = 0,
) -> float:
    """Expected tokens per nominal second of what was chosen, as a share of the best's.

    Args:
        tracker: makes the StepCosts of each call.
        machine, clock, text: what is simulated.
        length: of each call's prompt.
        new: tokens that each call generates.
        calls: how many there are; what they measure is kept.
        seed: of the clock and the text.
    """
    rng = np.random.default_rng(seed)
    speed = clock(np.random.default_rng(seed + 1))
    ours, best = np.zeros(2), np.zeros(2)
    for _ in range(calls):
        costs = tracker()
        controller = make_controller("auto", MOST, costs.required_tokens, costs.surcharge)
        at = 0
        while at < new:
            costs.at(length + at)
            chain, siblings = text(rng)
            best += best_rate(machine, length + at, np.cumprod(chain), tree_of(chain, siblings)[1])
            draft, width, expected = _choose(costs, controller, chain, siblings)
            tree = draft.parents is not None
            seconds = machine.seconds(width, length + at, tree)
            ours += (expected, seconds)
            costs.record_time(width, seconds * next(speed), tree)
            accepted = _accepted(draft, rng)
            costs.record_acceptance(width, len(draft), accepted)
            at += 1 + accepted
    return float(ours[0] / ours[1] / (best[0] / best[1]))


def _accepted(draft: Draft, rng: np.random.Generator) -> int:
    """How many of a draft's tokens come true, by its own confidence."""
    count, at, children = 0, -1, draft.children()
    while children[at + 1]:
        nodes = children[at + 1]
        ends = np.cumsum([float(draft.confidence[node]) for node in nodes])
        here = int(np.searchsorted(ends, rng.random()))
        if here == len(nodes):
            break
        count, at = count + 1, nodes[here]
    return count


def _choose(costs, controller, chain, siblings) -> tuple[Draft, int, float]:
    """The draft of a step, the width it runs at, and the tokens that it promises."""
    none = Draft(np.empty(0, np.int32))
    if costs.plain():
        return none, 1, 1.0
    gamma, cost = controller.plan(True)
    draft, reach = tree_of(chain, siblings)
    draft = draft.first(min(gamma, worthwhile_nodes(reach[:MOST], cost)))
    draft = controller.keep(draft.as_chain())
    confidence = draft.confidence.astype(float)
    if draft.parents is None:
        expected = 1 + float(np.cumprod(confidence).sum())
    else:
        reached = np.ones(len(draft) + 1)
        for node, parent in enumerate(draft.parents.tolist()):
            reached[node] = confidence[node] * (1 if parent < 0 else reached[parent])
        expected = 1 + float(reached[: len(draft)].sum())
    width = 1 + len(draft)
    return draft, width if draft.parents is not None else costs.width(width, 65), expected


class Model:
    """What costs are kept for."""


def call_share(
    kind: ForwardKind,
    costs_of: Mapping[int, float],
    clock: Callable[[np.random.Generator], Iterator[float]],
    text: np.ndarray,
    prompt: int,
    *,
    seed: int = 0,
) -> float:
    """The speed of a whole call relative to the baseline's, drafted by ``auto``.

    Args:
        kind: what the forwards are taken for.
        costs_of: what they cost by width, in contexts of any length, relative to one position.
        clock: of the machine's speed.
        text: int32 (n,), the prompt and what the target says.
        prompt: length of the prompt.
        seed: of the clock.
    """
    speed, output = clock(np.random.default_rng(seed)), text[prompt:].tolist()
    machine = Machine((*costs_of,), (*costs_of.values(),), (0.0,) * len(costs_of))
    position = (machine.seconds(64, 0) - machine.seconds(32, 0)) / 32  # of a wide forward
    costs = StepCosts(model_of(Model(), kind), MOST + 1)
    controller = make_controller("auto", MOST, costs.required_tokens, costs.surcharge)
    session = build_drafter("auto").start(text[:prompt])

    def propose(most: int, room: int, tree: bool) -> tuple[Draft, list[int]]:
        gamma, cost = controller.plan(True)
        draft = session.propose(min(gamma, most), cost, tree=tree)
        draft = controller.keep(draft.within(room).as_chain())
        return draft, draft.path_along(output[at:-1])

    at = 0
    costs.at(prompt, prefill=True)
    draft, path = propose(PrefillDraftLength(MOST).limit, len(output) - 1, tree=False)
    spent = position * (prompt + len(draft))
    while True:
        session.extend(text[prompt + at :][: len(path) + 1])
        at += len(path) + 1
        if at >= len(output):
            break
        costs.at(prompt + at)
        draft, path = EMPTY_DRAFT, []
        if not costs.plain():
            draft, path = propose(MOST, len(output) - at - 1, tree=True)
        width = 1 + len(draft)
        if draft.parents is None:
            width = costs.width(width, MOST + 1)
        cost, branches = machine.seconds(width, 0), draft.parents is not None
        costs.record_time(width, cost * next(speed), branches)
        costs.record_acceptance(width, len(draft), len(path))
        spent += cost
    session.close()
    return (position * prompt + len(output) - 1) / spent
