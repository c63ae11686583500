"""What the benchmarks print: plain tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ngramspec.bench.structures import Reading

if TYPE_CHECKING:
    import torch

    from ngramspec.bench.divergence import Comparison
    from ngramspec.bench.parity import Cell

READINGS_HEADER = (
    f"{'drafter':<30}{'text':<12}{'tokens':>9}{'start':>9}{'propose':>9}{'step':>9}"
    f"{'p99':>9}{'worst':>9}{'bytes':>8}{'drafted':>9}\n"
    f"{'':<30}{'':<12}{'':>9}{'µs/token':>9}{'µs':>9}{'µs':>9}{'µs':>9}{'µs':>9}"
    f"{'/token':>8}{'/step':>9}"
)


def reading_line(reading: Reading) -> str:
    """One line under READINGS_HEADER."""
    r = reading
    size = "-" if r.bytes_per_token is None else f"{r.bytes_per_token:.0f}"
    return (
        f"{r.drafter:<30}{r.text:<12}{r.tokens:>9}{r.start_us:>9.3f}{r.propose_us:>9.2f}"
        f"{r.step_us:>9.2f}{r.p99_us:>9.1f}{r.worst_us:>9.0f}{size:>8}"
        f"{r.drafted:>9.2f}"
    )


def parity_summary(cells: Sequence[Cell]) -> str:
    """How many cells came out how, by what was varied."""
    outcomes = ("identical", "refused", "wrong", "not run")
    kinds: dict[str, Counter[str]] = {}
    for cell in cells:
        kinds.setdefault(cell.what.rpartition(", ")[0] or cell.what, Counter())[cell.outcome] += 1
    lines = [f"{'':<36}" + "".join(f"{outcome:>11}" for outcome in outcomes)]
    for kind, found in kinds.items():
        lines.append(f"{kind:<36}" + "".join(f"{found[outcome]:>11}" for outcome in outcomes))
    total = Counter(cell.outcome for cell in cells)
    lines.append(f"{'all':<36}" + "".join(f"{total[outcome]:>11}" for outcome in outcomes))
    return "\n".join(lines)


def departure_line(found: Comparison, dtype: torch.dtype, tokenizer: Any) -> str:
    """Where a prompt's texts part, and by how much the logits lie apart there."""
    at = found.divergence
    assert at is not None
    plain, speculative = (tokenizer.decode([token]) for token in (at.plain, at.speculative))
    verdict = "tie" if at.is_tie(dtype) else "WRONG"
    return (
        f"{verdict:<6}{found.name}, token {at.token}: {speculative!r} in place of {plain!r};"
        f" two best {at.gap:.3g} apart ({at.gap_ulps:.3g} ulps), these two {at.chosen_gap:.3g}"
        f" ({at.chosen_ulps:.3g} ulps)"
    )


def divergence_summary(
    found: Sequence[Comparison], dtype: torch.dtype, tokens_per_call: float
) -> str:
    """How many texts are identical, and how far apart the two best logits lie where they part."""
    from ngramspec.bench.divergence import histogram

    departures = [each.divergence for each in found if each.divergence is not None]
    wrong = sum(not each.is_tie(dtype) for each in departures)
    lines = [
        f"{len(found)} prompts: {len(found) - len(departures)} identical,"
        f" {len(departures) - wrong} part at a tie, {wrong} are wrong;"
        f" {sum(each.tokens for each in found)} tokens the same; {tokens_per_call:.2f} per call"
    ]
    if departures:
        lines.append("gap between the two best logits where they part, in units in the last place")
        counts = histogram(departures)
        lines += [f"{unit:>4}{count:>6}  {'#' * count}" for unit, count in counts.items()]
    return "\n".join(lines)


def replay_tables(results: Sequence[dict[str, Any]]) -> str:
    """Per curve: the means of every drafter, then tokens per cost by group."""
    parts = []
    for curve in dict.fromkeys(result["curve"] for result in results):
        mine = [result for result in results if result["curve"] == curve]
        parts += [_means(mine, curve), _groups(mine)]
    return "\n\n".join(parts)


def _means(results: Sequence[dict[str, Any]], curve: str) -> str:
    lines = [
        f"{curve} curve: geometric means over groups; counts over all traces; times of a step",
        f"{'drafter':<30}{'tok/cost':>9}{'halves':>14}{'tok/call':>9}{'alpha':>7}{'acc/drft':>9}"
        f"{'drft/step':>10}{'median':>8}{'p99 µs':>8}",
    ]
    for result in results:
        mean, groups = result["mean"], result["groups"].values()
        first, second = (half["tokens_per_cost"] for half in result["halves"])
        calls = sum(group["calls"] for group in groups)
        tiers = result["tiers"].values()
        tested, accepted = (sum(tier[key] for tier in tiers) for key in ("tested", "accepted"))
        drafted = sum(group["drafted_per_step"] * group["calls"] for group in groups)
        lines.append(
            f"{result['drafter']:<30}{mean['tokens_per_cost']:>9.3f}{first:>8.3f}{second:>6.3f}"
            f"{mean['tokens_per_call']:>9.3f}{accepted / max(tested, 1):>7.3f}"
            f"{accepted / max(drafted, 1):>9.3f}{drafted / calls:>10.2f}"
            f"{mean['step_us_median']:>8.2f}{mean['step_us_p99']:>8.1f}"
        )
    return "\n".join(lines)


def _groups(results: Sequence[dict[str, Any]]) -> str:
    names = [*results[0]["groups"]]
    width = max(len(name) for name in names) + 2
    lines = ["tokens per cost by group", f"{'':<30}" + "".join(f"{n:>{width}}" for n in names)]
    for result in results:
        values = (result["groups"][name]["tokens_per_cost"] for name in names)
        lines.append(f"{result['drafter']:<30}" + "".join(f"{v:>{width}.3f}" for v in values))
    return "\n".join(lines)
