"""The tables of README and docs in Markdown, each made from one or more raw files.

A renderer takes the contents of the raw files in the order of ``Table.commands``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import geometric_mean, median
from typing import Any

from ngramspec.measure.tasks import sample_texts

Raw = dict[str, Any]
TITLES = {each.task: each.title for each in sample_texts()}


def markdown(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown; numbers must be formatted already."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _speed(value: float | None, digits: int = 2) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _mean(values: Iterable[float], digits: int = 2) -> str:
    """A geometric mean; empty without values."""
    found = list(values)
    return _speed(geometric_mean(found), digits) if found else ""


def _by_task(raw: Raw) -> dict[str, dict[str, Raw]]:
    """The rows of ``ngramspec bench`` by task and configuration."""
    found: dict[str, dict[str, Raw]] = {}
    for row in raw["summary"]:
        found.setdefault(row["task"], {})[row["way"]] = row
    return found


def demo(raw: Raw) -> str:
    """Tokens per second of the demo's texts."""
    rows = []
    for task, by_way in _by_task(raw).items():
        ways = ("plain", "prompt lookup 10", "ngramspec")
        plain, lookup, ours = (by_way[way]["tokens_per_second"] for way in ways)
        speeds = (f"{each:.1f}" for each in (plain, lookup, ours))
        rows.append((TITLES[task], *speeds, _speed(ours / plain), _speed(ours / lookup)))
    header = ("demo text", "baseline", "prompt lookup", "ngramspec")
    return markdown((*header, "speedup over baseline", "over lookup"), rows)


# The models of ``benchmarks models`` by the names of their folders, and its tasks.
MODELS = {"qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B", "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B"}
MODELS |= {"gemma-3-270m": "Gemma 3 270M", "SmolLM2-135M-Instruct": "SmolLM2-135M"}
TASKS = {"edit": "edit code", "tools": "tool calls", "code": "continue code"}
TASKS |= {"answer": "answer from a text", "summary": "summarize", "chat": "explain a text"}
Cell = tuple[str, str, str, str]  # model, dtype, mode and task


@dataclass(frozen=True)
class Speedups:
    """Of the prompts of a cell, each over the baseline; prompt lookup's is its better size."""

    ours: list[float]
    lookup: list[float]  # empty for batches
    same: int
    tokens_per_call: list[float]

    def __str__(self) -> str:
        """Lookup's mean, that of ours, and of several prompts our worst; of batches the limit."""
        if not self.lookup:
            return f"{_mean(self.ours)} of {_mean(self.tokens_per_call)}"
        worst = f" ({min(self.ours):.2f})" if len(self.ours) > 1 else ""
        return f"{_mean(self.lookup)}, {_mean(self.ours)}{worst}"


def speedups(raw: Raw) -> dict[Cell, Speedups]:
    """The results of ``benchmarks models``, in the order of MODELS and TASKS."""
    cells: dict[Cell, list[Raw]] = {}
    for row in raw["rows"]:
        cells.setdefault((row["model"], row["dtype"], row["mode"], row["task"]), []).append(row)

    def place(cell: Cell) -> tuple[int, bool, str, int, str]:
        model, dtype, mode, task = cell
        kind = [*TASKS].index(task.partition(" ")[0])
        return [*MODELS].index(model), dtype != "float32", mode, kind, task

    found = {}
    for cell in sorted((cell for cell in cells if cell[0] in MODELS), key=place):
        ways: dict[str, list[float]] = {}
        for speeds in (row["tokens_per_second"] for row in cells[cell]):
            for way in speeds.keys() - {"plain"}:
                ways.setdefault(way, []).append(speeds[way] / speeds["plain"])
        same = sum(row["same_as_plain"]["ours"] for row in cells[cell])
        ours, calls = ways.pop("ours"), [row["tokens_per_call"] for row in cells[cell]]
        lookup = max(ways.values(), key=geometric_mean, default=[])
        found[cell] = Speedups(ours, lookup, same, calls)
    return found


def models(*files: Raw) -> str:
    """Speedups over the baseline by model, dtype and mode, with a column for each task."""
    found = speedups({"rows": [row for raw in files for row in raw["rows"]]})
    tasks, rows = list(dict.fromkeys(cell[3] for cell in found)), []
    for model, dtype, mode in dict.fromkeys(cell[:3] for cell in found):
        line = [found.get((model, dtype, mode, task)) for task in tasks]
        same = f"{sum(each.same for each in line if each)} of"
        same += f" {sum(len(each.ours) for each in line if each)}"
        rows.append((MODELS[model], dtype, mode, *(each or "" for each in line), same))
    return markdown(("model", "dtype", "decoding", *tasks, "same text"), rows)


def chart(raw: Raw, random: Raw) -> str:
    """README's chart, and below it means, worst prompts, and how they were measured."""
    means, worst, counts = [], [], []
    for mode in ("greedy", "sampled"):
        cells = [each for cell, each in speedups(raw).items() if cell[1:3] == ("float32", mode)]
        ours, lookup = (
            [v for each in cells for v in vars(each)[way]] for way in ("ours", "lookup")
        )
        means += [geometric_mean(ours), geometric_mean(ours) / geometric_mean(lookup)]
        worst.append(min(ours))
        counts.append(len(ours))
    nothing = next(row for row in random["summary"] if row["way"] == "ngramspec")
    settings = raw["settings"]
    times = "once" if settings["repeats"] == 1 else f"{settings['repeats']} times"
    return (
        "![Speed by model and task, relative to plain generate](docs/pictures/chart.svg)\n\n"
        f"Greedy decoding is **{means[0]:.2f}** times as fast as with plain `generate` and"
        f" **{means[1]:.2f}** times as fast as with prompt lookup (geometric means over {counts[0]}"
        f" prompts). With the models' own sampling settings it is {means[2]:.2f} and"
        f" {means[3]:.2f} times as fast. The worst prompt runs at **{min(worst):.2f}** times the"
        f" baseline's speed. Each prompt ran {times} in each way, with at most"
        f" {settings['max_new_tokens']} new tokens, in float32, with weights that were dequantized"
        f" from 4 bits. Random text, with SmolLM2 and {random['settings']['repeats']} calls of each"
        f" prompt, runs at {nothing['ratio']:.2f} times (worst prompt:"
        f" {nothing['ratio_worst']:.2f})."
    )


def whole_calls(*files: Raw) -> str:
    """Speedup of whole calls by dtype, instructions and task, with the worst prompt."""
    rows = []
    for raw in files:
        settings = raw["settings"]
        for task, by_way in _by_task(raw).items():
            ways = by_way["prompt lookup 10"], by_way["ngramspec"]
            speeds = (f"{each['ratio']:.2f} ({each['ratio_worst']:.2f})" for each in ways)
            lookup, ours = ways
            figures = (ours["ratio"] / lookup["ratio"], ours["tokens_per_call"])
            more = map(_speed, (*figures, ours["limit_share"]))
            text = "forced" if settings["same_text"] else f"{ours['same']} of {ours['prompts']}"
            what = (settings["dtype"], raw["where"]["instructions"], task, ours["prompts"])
            rows.append((*what, *speeds, *more, text))
    header = ("dtype", "instructions", "task", "prompts", "lookup (10)", "ngramspec", "over lookup")
    return markdown((*header, "tokens per call", "of the limit", "same text"), rows)


def nothing(*files: Raw) -> str:
    """Speed relative to the baseline's on random text."""
    rows = []
    for raw in files:
        ours = next(row for row in raw["summary"] if row["way"] == "ngramspec")
        settings, instructions = raw["settings"], raw["where"]["instructions"]
        what = (settings["dtype"], instructions, ours["prompts"], settings["repeats"])
        ratios = [ours[f"ratio{which}"] for which in ("_median", "", "_worst")]
        ratios.append(ours["decode_ratio"] / ours["limit_share"])
        rows.append((*what, *(_speed(each, 3) for each in ratios)))
    header = ("dtype", "instructions", "prompts", "rounds", "median", "mean", "worst prompt")
    return markdown((*header, "by forwards"), rows)


def lengths(*files: Raw) -> str:
    """Speedup after the prefill by the prompt's length and task, and what the forwards allow."""
    cells: dict[tuple[int, str], dict[str, tuple[float, float]]] = {}
    for row in (row for raw in files for row in raw["summary"] if "ngramspec" in row["way"]):
        speed = row["decode_ratio"], row["decode_ratio"] / row["limit_share"]
        cells.setdefault((row["length"], row["task"]), {})[row["way"]] = speed
    rows = []
    for cell, speeds in cells.items():
        ours, figures = speeds.pop("ngramspec"), list[str]()
        for own, fixed in zip(ours, zip(*speeds.values(), strict=True), strict=True):
            best, way = max(zip(fixed, speeds, strict=True))
            named = f"{best:.2f} ({way.removeprefix('ngramspec, ')})"
            figures += [_speed(own), named, _speed(own / best, 3)]
        rows.append((*cell, *figures))
    header = ("ngramspec", "best fixed setting", "relative to it")
    more = (f"{column}, by forwards" for column in header)
    return markdown(("prompt tokens", "task", *header, *more), rows)


def compiled(raw: Raw) -> str:
    """Tokens per second with compiled forwards."""
    names = {"plain": "baseline", "plain, compiled": "baseline, compiled"}
    names |= {"prompt lookup 10": "lookup, eager", "ngramspec": "ngramspec, eager"}
    names |= {"ngramspec, compiled": "ngramspec, compiled"}
    names |= {"ngramspec, width 16, compiled": "`width=16`"}
    rows = []
    for task, by_way in _by_task(raw).items():
        rates = {way: row["tokens_per_second"] for way, row in by_way.items()}
        ratio = rates["ngramspec, compiled"] / rates["plain, compiled"]
        rows.append((TITLES[task], *(f"{rates[way]:.1f}" for way in names), _speed(ratio)))
    return markdown(("demo text", *names.values(), "compiled, over compiled baseline"), rows)


def profile(raw: Raw) -> str:
    """Shares of a step's time by section."""
    sections = ["forward", "verification", "input preparation", "rollback", "drafting"]
    sections += ["rest of Python"]
    names = {"plain": "baseline", "lookup 10": "prompt lookup", "ngramspec": "ngramspec"}
    rows = []
    for row in raw["rows"]:
        share = row["share"]
        cells = (f"{100 * share[each]:.1f} %" if each in share else "" for each in sections)
        rows.append((names[row["way"]], row["task"], *cells))
    return markdown(("", "text", *sections), rows)


def replay(*files: Raw, names: Sequence[str]) -> str:
    """Replays: a row for each drafter of each raw file."""
    rows = []
    for note, raw in zip(names, files, strict=True):
        means: dict[str, dict[str, Raw]] = {}
        for result in raw["results"]:
            name = result.get("preset", result["drafter"])
            means.setdefault(name, {})[result["curve"]] = result["mean"]
        for name, by_curve in means.items():
            if name == "none" or "gpu" not in by_curve:
                continue
            gpu = by_curve["gpu"]
            cpu = by_curve.get("cpu", {}).get("tokens_per_cost")
            figures = (cpu, gpu["tokens_per_cost"], gpu["tokens_per_call"])
            cells = (*(_speed(each, 3) for each in figures), f"{gpu['step_us_median']:.1f} µs")
            rows.append((f"{name}{note and ', '}{note}", *cells))
    header = ("drafter", "tokens per cost, cpu", "gpu", "tokens per call, gpu")
    return markdown((*header, "step, median"), rows)


def rows_of_engine(raw: Raw) -> str:
    """Tokens per call of rows that share a step's positions."""
    rows = []
    for group, each in raw["results"]["auto"].items():
        calls = (_speed(each[which]["tokens_per_call"], 3) for which in ("single", "rows"))
        rows.append((group, *calls, _speed(each["share"], 3)))
    count = raw["settings"]["rows"]
    return markdown(("group", "one row", f"{count} rows", "share"), rows)


def together(gpu: Raw, cpu: Raw) -> str:
    """Speedup of batches of ``generate``, by replay: chains, and trees."""

    def cell(result: Raw, group: str) -> str:
        found = result["groups"][group]
        return ", ".join(_speed(found[kind]["speedup"]) for kind in ("chains", "trees"))

    groups = list(gpu["results"][0]["groups"])
    rows = [(group, *(cell(result, group) for result in gpu["results"])) for group in groups]
    rows.append(("mean, cpu curve", *(cell(result, "mean") for result in cpu["results"])))
    return markdown(("rows", *(result["rows"] for result in gpu["results"])), rows)


def agents(raw: Raw) -> str:
    """Tokens per cost of agent sessions by group and knowledge; Arctic's is its better factor."""
    groups = list(raw["turns"])
    rows = []
    for group in groups:
        cells: dict[tuple[str, str], dict[tuple[bool, str], list[float]]] = {}
        for row in raw["rows"]:
            name = row["drafter"] if row["drafter"] == "ngramspec" else "Arctic"
            found = cells.setdefault((name, row["known"]), {})
            values = found.setdefault((row["trees"], row["curve"]), [])
            values.append(row["tokens_per_cost"][group])
        for (name, known), by_plan in cells.items():
            plans = ((False, "cpu"), (False, "gpu"), (True, "cpu"), (True, "gpu"))
            best = (_speed(max(by_plan[plan])) for plan in plans)
            rows.append((group, raw["turns"][group], f"{name}, {known}", *best))
    header = ("group", "turns", "drafter", "chains, cpu", "gpu", "trees, cpu", "gpu")
    return markdown(header, rows)


def fleet(raw: Raw) -> str:
    """Tokens per cost of servers that share text or do not."""
    groups, rows = [*raw["rows"][0]["tokens_per_cost"]], []
    for row in raw["rows"]:
        speeds = (_speed(row["tokens_per_cost"][group]) for group in groups)
        delay = f"{row['delay_ms']:.0f}" if "delay_ms" in row else ""
        rows.append((row["case"], *speeds, _speed(row["step_us_median"], 1), delay))
    return markdown(("text", *groups, "step, µs", "delay, ms"), rows)


def costs(raw: Raw) -> str:
    """Costs of forwards on the measured machine."""
    widths = [*raw["rows"][0]["costs"]]
    rows = [
        (row["dtype"], *(_speed(row["costs"][width]) for width in widths)) for row in raw["rows"]
    ]
    return markdown(("positions", *widths), rows)


def native_kept(raw: Raw) -> Raw:
    """The medians of pytest-benchmark's operations."""
    found = [
        {
            "operation": each["group"],
            **each["params"],
            "median_us": 1e6 * each["stats"]["median"],
            "iqr_us": 1e6 * each["stats"]["iqr"],
        }
        for each in raw["benchmarks"]
    ]
    return {"rows": found}


def native(raw: Raw) -> str:
    """Microseconds of each operation and structure, and their growth with the context."""
    sizes = sorted({row["size"] for row in raw["rows"] if "size" in row})
    cells = {(r["operation"], r["name"], r.get("size")): r["median_us"] for r in raw["rows"]}
    rows = []
    for operation, name in dict.fromkeys((each[0], each[1]) for each in cells):
        known = [cells.get((operation, name, size)) for size in sizes]
        if known[0] is None or known[-1] is None:
            only = _speed(cells[operation, name, None], 0)
            rows.append((operation, name, *("" for _ in sizes[1:]), only, ""))
        else:
            growth = f"{known[-1] / known[0]:.1f}"
            rows.append((operation, name, *(_speed(each) for each in known), growth))
    header = ("operation, µs", "structure", *(f"{size:,} tokens" for size in sizes))
    return markdown((*header, f"{sizes[-1]:,} relative to {sizes[0]:,}"), rows)


def host_time(raw: Raw) -> str:
    """Microseconds outside the forward, and the speed of steps without a draft."""
    assumed = raw["assumed_forwards_ms"]
    times = ("undrafted", "per_forward", "spread", "per_token")
    rows = [
        (
            row["name"],
            *("" if row[each] is None else f"{row[each]:.0f}" for each in times),
            f"{row['drafted']:.0%}",
            *([_speed(each, 3) for each in row["assumed"]] or [""] * len(assumed)),
        )
        for row in raw["rows"]
    ]
    header = (
        *("loop, text", "µs per step without a draft", "µs per forward", "spread"),
        *("µs per token", "steps with a draft"),
    )
    return markdown((*header, *(f"speed at {each} ms" for each in assumed)), rows)


def summaries(*files: Raw) -> str:
    """Speedup of an encoder-decoder by text, dtype, beams and rows: means over the batches."""
    cells: dict[tuple[str, str, int, int], list[Raw]] = {}
    for raw in files:
        settings = raw["settings"]
        text = "sentences of the article" if settings.get("extract") else "recorded"
        for row in raw["rows"]:
            cell = (text, settings["dtype"], row["beams"], row["batch"])
            cells.setdefault(cell, []).append(row)
    rows = [
        (
            *cell,
            *(_mean(row[each] for row in found) for each in ("speedup", "worst")),
            _mean(row["lookup"] for row in found if row["lookup"] is not None),
            *(_mean(row[each] for row in found) for each in ("tokens_per_call", "encoder_share")),
            f"{sum(row['same'] for row in found)} of {len(found)}",
        )
        for cell, found in cells.items()
    ]
    header = ("summary", "dtype", "beams", "rows", "ngramspec", "worst turn", "prompt lookup")
    more = ("tokens per call", "encoder's share of the baseline", "same text")
    return markdown((*header, *more), rows)


def samples(raw: Raw) -> str:
    """Speedup of several answers to one prompt: geometric means over the prompts."""
    names = {"ours": "from each other", "separate": "separately"}
    rows = []
    for way, name in names.items():
        speeds = [row[way]["speedup"] for row in raw["rows"]]
        calls = _mean(row[way]["tokens_per_call"] for row in raw["rows"])
        rows.append((name, len(speeds), _mean(speeds), _speed(min(speeds)), calls))
    return markdown(("drafted", "prompts", "speedup", "worst prompt", "tokens per call"), rows)


def heads(raw: Raw) -> str:
    """Tokens per cost of tables and a drafting head, alone and together, by the head's cost."""
    results = raw["results"]
    names = list(results[0]["tokens_per_cost"])
    rows = []
    for result in results:
        means = [_mean(result["tokens_per_cost"][name].values(), 3) for name in names]
        better = _mean(result["ratios"]["/ better alone"].values(), 3)
        rows.append((result["cost"], *means, better))
    return markdown(("cost of the head", *names, "both / better alone"), rows)


def waits(raw: Raw) -> str:
    """Waits of the host and copies to the device, the baseline's first."""
    rows = []
    for name, each in raw["cases"].items():
        ours, plain = each["ours"], each["plain"]
        pairs = [f"{plain[key]}, {ours[key]}" for key in ("step", "before", "prefill")]
        rows.append((name, *pairs, ours["copies"]))
    header = ("case", "a step", "before the prefill", "from it to the next forward")
    return markdown((*header, "copies a step"), rows)


def divergence(*files: Raw) -> str:
    """Number of texts that differ from the baseline's, and how near to a tie they diverge."""
    rows = []
    for raw in files:
        settings = raw["settings"]
        units = [unit for unit, count in raw["histogram_ulps"].items() if count]
        way = "plain `generate`" if settings.get("plain") else "ngramspec"
        what = (settings["dtype"], way, settings["batch"], settings["prompts"], settings["tokens"])
        counts = (raw["ties"] + raw["wrong"], raw["wrong"])
        rows.append((*what, *counts, units[-1] if units else ""))
    header = ("dtype", "compared", "rows", "texts", "tokens", "differ", "not by a tie")
    return markdown((*header, "largest gap, units in the last place"), rows)


def near_ties(ours: Raw, control: Raw) -> str:
    """What README says about the texts that differ, and about those of other batches."""
    settings = ours["settings"]
    differ, others = (raw["ties"] + raw["wrong"] for raw in (ours, control))
    return (
        f"In {settings['dtype']}, {differ} of {settings['prompts']} texts of"
        f" {settings['tokens']} tokens differed from the baseline's. Without any speculation,"
        f" {others} of the texts for the same prompts differ between plain `generate` of single"
        f" prompts and of batches of {control['settings']['batch']}."
    )


def alpha_sampling(raw: Raw) -> str:
    """Acceptance by Algorithm 1 and by exact match, by temperature."""
    found: dict[float, dict[str, Raw]] = {}
    for row in raw["rows"]:
        if row["group"] == "all":
            found.setdefault(row["temperature"], {})[row["drafter"]] = row["alpha"]
    rows = []
    for temperature, by_drafter in found.items():
        sampled, best = by_drafter["ngram(sample=true)"], by_drafter["ngram"]
        error = f"{sampled['alpha'][0]:.3f} ± {sampled['error'][0]:.3f}"
        rows.append((temperature, error, _speed(sampled["match"], 3), _speed(best["match"], 3)))
    header = ("temperature", "sampled drafts, Algorithm 1", "sampled drafts, exact match")
    return markdown((*header, "most frequent token"), rows)


def alpha_types(raw: Raw) -> str:
    """Greedy alpha of each drafter by the type of text, and the share of positions drafted."""
    cells: dict[str, dict[str, str]] = {}
    for row in raw["rows"]:
        if row["temperature"] == 0:
            alpha = row["alpha"]
            value = alpha["alpha"][0] if alpha["alpha"] else 0.0
            cells.setdefault(row["drafter"], {})[row["group"]] = (
                f"{value:.2f} of {alpha['drafted']:.2f}"
            )
    groups = list(next(iter(cells.values())))
    rows = [(name, *(by_group[group] for group in groups)) for name, by_group in cells.items()]
    return markdown(("drafter", *groups), rows)


def explain(raw: Raw) -> str:
    """The predicted speedup from line to line, and the measured one."""
    rows, before = [], None
    for rung in raw["rungs"]:
        change = "" if before is None else f"{rung['speed'] - before:+.2f}"
        before = rung["speed"]
        rows.append((rung["name"], _speed(before), change, rung["says"]))
    return markdown(("line", "speedup over baseline", "change", "from"), rows)


def parity(raw: Raw) -> str:
    """Number of model classes by outcome; a class counts once."""
    outcomes: dict[str, set[str]] = {}
    chains = set()
    for cell in raw["cells"]:
        if cell["what"] in ("any", "batch 1", "batch 2"):
            outcomes.setdefault(cell["model"], set()).add(cell["outcome"])
            if cell["detail"]:
                chains.add(cell["model"])
    order = ("wrong", "refused", "not run", "identical")  # the first that a class has counts
    worst = {model: min(found, key=order.index) for model, found in outcomes.items()}
    counts = Counter(worst.values())
    trees = sum(each == "identical" and model not in chains for model, each in worst.items())
    rows = [
        ("the baseline's text in batches of 1 and 2", counts["identical"]),
        ("of these, with branches too (the others have chains)", trees),
        ("another text", counts["wrong"]),
        ("refused with the reason", counts["refused"]),
        ("not run, because they need more than a text", counts["not run"]),
    ]
    return markdown(("result", "classes"), rows)


def structures(raw: Raw) -> str:
    """Microseconds of a step of each drafter on natural text, by tokens of context."""
    readings = [each for each in raw["readings"] if each["text"] == "natural"]
    sizes = sorted({each["tokens"] for each in readings})
    cells = {(each["drafter"], each["tokens"]): each for each in readings}
    rows = []
    for name in dict.fromkeys(each["drafter"] for each in readings):
        found = [cells[name, size] for size in sizes if (name, size) in cells]
        steps = [f"{each['step_us']:.1f}" for each in found] + [""] * (len(sizes) - len(found))
        rows.append((name, *steps, _speed(found[-1]["bytes_per_token"], 0)))
    header = ("drafter", *(f"{size:,} tokens" for size in sizes))
    return markdown((*header, "bytes per token, longest"), rows)


def stores(corpus: Raw, shared: Raw) -> str:
    """The cost of a corpus and of a shared store's namespace."""
    held, added = shared["add"]["held"], shared["add"]["us_a_token"]
    rows = [
        ("corpus", corpus["tokens"], corpus["build_us_a_token"], corpus["bytes_a_token"], corpus),
        ("namespace of a shared store", held, added, shared["bytes"] / held, shared),
    ]
    cells = []
    for name, tokens, build, size, raw in rows:
        times = (_speed(raw["look_up"][each], 1) for each in ("us_median", "us_p99"))
        cells.append((name, f"{tokens:,}", _speed(build), _speed(size, 1), *times))
    header = ("structure", "tokens", "build, µs per token", "bytes per token")
    return markdown((*header, "look-up, µs", "99th percentile"), cells)


def beams(*files: Raw, names: Sequence[str]) -> str:
    """Beam searches, with a text's name for each raw file."""
    rows = []
    for text, raw in zip(names, files, strict=True):
        for count in dict.fromkeys(row["beams"] for row in raw["rows"]):
            found = [row for row in raw["rows"] if row["beams"] == count]
            keys = ("undrafted", "ours", "tokens_per_call")
            means = (_mean(row[key] for row in found) for key in keys)
            same = f"{sum(row['same'] for row in found)} of {len(found)}"
            rows.append((text, count, *means, same))
    header = ("text", "beams", "without drafts", "ngramspec", "tokens per call", "same text")
    return markdown(header, rows)


def vllm(raw: Raw) -> str:
    """Tokens per second in one vLLM server relative to no drafts: means over the repeats."""
    names = {"ngram": "vLLM ngram", "suffix": "vLLM suffix"}
    names |= {"ngramspec": "ngramspec", "shared": "with a store"}
    cells: dict[tuple[str, int], list[Mapping[str, Raw]]] = {}
    for run in raw["runs"]:
        cells.setdefault((run["kind"], run["concurrency"]), []).append(run["figures"])
    speed = "tokens_per_second"
    rows = [
        (
            *cell,
            *(_mean(each[way][speed] / each["nothing"][speed] for each in found) for way in names),
        )
        for cell, found in sorted(cells.items())
    ]
    return markdown(("prompts", "concurrent requests", *names.values()), rows)


def vllm_propose(raw: Raw) -> str:
    """Microseconds that vLLM's runner waits for drafts, by rows."""
    keys = ("median_us", "p90_us", "drafted_a_row", "tokens_a_row_step")
    rows = [(each["rows"], *(_speed(each[key], 1) for key in keys)) for each in raw["figures"]]
    header = ("rows", "`propose`, µs", "90th percentile", "drafted per row")
    return markdown((*header, "tokens per row and step"), rows)


def llama(*files: Raw, names: Sequence[str]) -> str:
    """Speedups of llama-cpp-python, with the type of the weights for each raw file."""
    rows = []
    for weights, raw in zip(names, files, strict=True):
        ours, lookup = (raw["decode_to_plain"][way] for way in ("ngramspec", "lookup"))
        prefill = _speed(raw["prefill_to_plain"]["ngramspec"])
        for group, found in ours.items():
            speeds = (_speed(each["speed"]) for each in (found, lookup[group]))
            rows.append((weights, group, *speeds, prefill))
    header = ("weights", "text", "ngramspec", "its own prompt lookup")
    return markdown((*header, "time of the prefill"), rows)


def editor(*files: Raw) -> str:
    """Medians of the editor benchmark and 95th percentiles, a column for each server."""
    names = {"ngramspec": "ngramspec serve", "ngramspec, no corpus": "no corpus"}
    names |= {"ngramspec, no drafts": "no drafts", "transformers": "transformers serve"}
    names |= {"llama_cpp": "llama_cpp.server"}
    modes = {"typing": "every 0.3 s, 3 of 4 cancelled", "pauses": "after pauses"}
    modes |= {"undo": "after pauses and undo"}
    asked = {each["server"] for raw in files for each in raw["answers"]}
    shown = [name for name in names if name in asked]
    rows = []
    for raw in files:
        settings = raw["settings"]
        what = (settings["model"].removesuffix("-greedy"), settings["dtype"])
        mode = modes[settings["mode"]] + ", fill in the middle" * settings["infill"]
        times: dict[tuple[bool, str, str], list[float]] = {}
        begun = set()
        for each in raw["answers"]:
            server, file = each["server"], (each["server"], each["function"])
            for part in ("first", "line"):
                times.setdefault((file in begun, part, server), []).append(each[part])
            begun.add(file)
        last = settings["until"]
        for later, part in product((False, True), ("first", "line")):
            which = "next requests" if later else "first request in a file"
            end = "first token" if part == "first" else last
            cells = [times.get((later, part, name)) for name in shown]
            which += f" ({len(next(filter(None, cells)))})"
            found = (f"{median(each):.2f} ({p95(each):.2f})" if each else "" for each in cells)
            rows.append((*what, mode, f"{which}: seconds to the {end}", *found))
        right = {name: 0 for _, _, name in times} | raw["right"]
        rows.append((*what, mode, "right lines", *(right.get(name, "") for name in shown)))
    return markdown(("model", "dtype", "requests", "", *(names[name] for name in shown)), rows)


def p95(found: Sequence[float]) -> float:
    """The 95th percentile: the time that one in twenty exceeds."""
    return sorted(found)[min(int(0.95 * len(found)), len(found) - 1)]
