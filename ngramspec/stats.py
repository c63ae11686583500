"""Counts and times of decoding, and the event of one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import Draft, Int32, Verdict, verified_nodes

# What limits a run; the reason follows.
PLAIN, NO_DRAFTS = "decoding without speculation", "steps have no drafts"
TOGETHER, CHAINS = "rows advance together", "drafts are chains"


@dataclass(slots=True)
class SourceStats:
    """Counts of one draft source's tokens; see DecodeStats."""

    drafted: int = 0
    verified: int = 0
    accepted: int = 0

    def add(self, other: SourceStats) -> None:
        """Add another run's counts to these."""
        self.drafted += other.drafted
        self.verified += other.verified
        self.accepted += other.accepted


@dataclass(slots=True)
class DecodeStats:
    """Counts and times of decoding.

    Prefills and their tokens have separate counts. ``draft_seconds`` and ``other_seconds`` include
    theirs; no other count does.

    Attributes:
        runs: generations; each has one prefill, which emits its accepted tokens and one more.
        prefill_drafted: draft tokens that prefills verified after the prompt.
        prefill_accepted: how many of these were accepted.
        target_calls: target forwards after the prefill.
        emitted: tokens committed by those forwards.
        drafted: draft tokens.
        verified: verified draft tokens; see Verdict.
        accepted: accepted draft tokens.
        reference_drafted: draft tokens that continue the reference text, those of prefills included
            (a token that it has after the same two tokens).
        reference_accepted: how many of these were accepted.
        plain_steps: target calls without a draft.
        host_syncs: transfers of the target's results to the host.
        limits: number of runs, by what limited them, and why: PLAIN, NO_DRAFTS, TOGETHER, or with
            ``tree=N`` CHAINS.
        drafter_faults: steps without a draft and restarts of drafters, because a drafter raised an
            error or returned an invalid draft.
        drafters_stopped: rows in which a drafter failed too often and was no longer called.
        sources: counts of draft tokens by their draft source.
        prefill_seconds: wall time of prefills, without their drafting.
        draft_seconds: wall time of drafting.
        forward_seconds: wall time of forwards. A forward ends when its result is on the host, or
            with its launch if the result is transferred later.
        other_seconds: wall time of everything else in the loop.
    """

    runs: int = 0
    prefill_drafted: int = 0
    prefill_accepted: int = 0
    target_calls: int = 0
    emitted: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    reference_drafted: int = 0
    reference_accepted: int = 0
    plain_steps: int = 0
    host_syncs: int = 0
    drafter_faults: int = 0
    drafters_stopped: int = 0
    limits: dict[str, int] = field(default_factory=dict)
    sources: dict[str, SourceStats] = field(default_factory=dict)
    prefill_seconds: float = 0.0
    draft_seconds: float = 0.0
    forward_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted tokens, as in vLLM and llama.cpp; 0.0 if none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def alpha(self) -> float:
        """Accepted / verified tokens, as in Leviathan et al. 2023; 0.0 if none was verified."""
        return self.accepted / self.verified if self.verified else 0.0

    @property
    def tokens_per_call(self) -> float:
        """Emitted tokens / target calls; 0.0 without calls."""
        return self.emitted / self.target_calls if self.target_calls else 0.0

    @property
    def draft_length(self) -> float:
        """Drafted tokens / target calls with a draft; 0.0 without any."""
        drafts = self.target_calls - self.plain_steps
        return self.drafted / drafts if drafts else 0.0

    @property
    def drafting_share(self) -> float:
        """Wall time of drafting / all time but the prefills' forwards; 0.0 without any."""
        seconds = self.draft_seconds + self.forward_seconds + self.other_seconds
        return self.draft_seconds / seconds if seconds else 0.0

    def __str__(self) -> str:
        return ", ".join(
            (
                f"{self.tokens_per_call:.2f} tokens per forward",
                f"accepted {self.accepted} of {self.verified} checked",
                *[*self.limits][:1],
            )
        )

    def count_step(self, draft: Draft, verdict: Verdict, names: Sequence[str]) -> None:
        """Add one target call."""
        self.target_calls += 1
        self.emitted += len(verdict.emitted)
        if not len(draft.tokens):
            self.plain_steps += 1
            return
        accepted = len(verdict.accepted)
        self.drafted += len(draft)
        self.verified += verdict.verified
        self.accepted += accepted
        source = [0] * len(draft) if draft.source is None else draft.source.tolist()
        for each in source:
            if names[each] not in self.sources:
                self.sources[names[each]] = SourceStats()
            self.sources[names[each]].drafted += 1
        for node in verified_nodes(draft, verdict.accepted, verdict.verified):
            self.sources[names[source[node]]].verified += 1
        for node in verdict.accepted:
            self.sources[names[source[node]]].accepted += 1

    def add(self, other: DecodeStats) -> None:
        """Add another run's counts and times to these."""
        for name in self.__slots__:
            if name in ("sources", "limits"):
                continue
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for limit, runs in other.limits.items():
            self.limits[limit] = self.limits.get(limit, 0) + runs
        for name, theirs in other.sources.items():
            self.sources.setdefault(name, SourceStats()).add(theirs)

    def reset(self) -> None:
        """Set every count and time to zero."""
        fresh = DecodeStats()
        for name in self.__slots__:
            setattr(self, name, getattr(fresh, name))


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One step of one row, for ``on_step``.

    In a batch, a criterion that sees all rows may later end the row before this step's last tokens.

    Attributes:
        index: index of the step. 0 is the prefill, which emits the accepted tokens of a draft after
            the prompt, and one more.
        drafted: the draft's token ids; those of a tree in the order of its nodes.
        source: the name of each draft token's source.
        verdict: the result of the draft's verification.
        draft_seconds: wall time of the step's drafting, of all rows.
        forward_seconds: wall time of its forward, of all rows.
        other_seconds: wall time of everything else in the step, of all rows.
        row: index of the sequence in the batch.
        width: positions of the step's forward in every row, including padding; for the prefill, the
            prompt's last position and those after it.
        parents: for each draft token the index of the token that it follows, -1 for the last
            committed token. None: each follows the one before.
    """

    index: int
    drafted: tuple[int, ...]
    source: tuple[str, ...]
    verdict: Verdict
    draft_seconds: float
    forward_seconds: float
    other_seconds: float
    row: int = 0
    width: int = 1
    parents: tuple[int, ...] | None = None

    @property
    def accepted(self) -> tuple[int, ...]:
        """The accepted draft tokens."""
        return tuple(self.drafted[node] for node in self.verdict.accepted)

    @property
    def rejected(self) -> tuple[int, ...]:
        """All other draft tokens, including those that were not verified."""
        accepted = set(self.verdict.accepted)
        return tuple(token for node, token in enumerate(self.drafted) if node not in accepted)


_FACTOR = np.uint64(0x9E3779B97F4A7C15)


class ReferenceCounter:
    """Counts the draft tokens that a reference text has after the same two tokens.

    This does not depend on the drafter, nor on where else the same text occurs. Memory: 8 bytes per
    token of the reference text. Two different triples have one key with a probability of 2**-64.
    """

    def __init__(self, reference: Int32, stats: DecodeStats) -> None:
        self.length = len(reference)
        self._known = np.unique(_keys(reference[:-2], reference[1:-1], reference[2:]))
        self._stats = stats

    def count(self, last: Int32, draft: Draft, accepted: Sequence[int]) -> None:
        """Add one verified draft.

        ``last`` are the two tokens before it, int32 (2,); with fewer, nothing is counted.
        """
        n = len(draft)
        if not n or len(last) < 2 or not len(self._known):
            return
        tokens = np.concatenate((last, draft.tokens))
        before = np.arange(-1, n + 1)  # index of the token before each
        before[0] = 0
        if draft.parents is not None:
            before[2:] = draft.parents + 2
        first = before[2:]
        keys = _keys(tokens[before[first]], tokens[first], tokens[2:])
        at = np.minimum(np.searchsorted(self._known, keys), len(self._known) - 1)
        found = self._known[at] == keys
        self._stats.reference_drafted += int(found.sum())
        self._stats.reference_accepted += int(found[list(accepted)].sum())


def _keys(first: Int32, second: Int32, third: Int32) -> NDArray[np.uint64]:
    """A hash of each three tokens, uint64 (n,)."""
    keys = first.astype(np.uint64)
    for tokens in (second, third):
        keys = (keys ^ (keys >> np.uint64(29))) * _FACTOR + tokens.astype(np.uint64)
    return keys
