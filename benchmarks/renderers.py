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

Raw = dict[str, Any]


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


# The models of ``benchmarks models`` by the names of their folders, and its tasks.
MODELS = {"qwen2.5-coder-1.5b": "Qwen2.5-Coder-1.5B", "qwen2.5-coder-0.5b": "Qwen2.5-Coder-0.5B"}
MODELS |= {"gemma-3-270m": "Gemma 3 270M", "SmolLM2-135M-Instruct": "SmolLM2-135M"}
TASKS = {"edit": "edit code", "tools": "tool calls", "code": "continue code"}
TASKS |= {"answer": "answer from a text", "summary": "summarize", "chat": "chat"}
LONG = "long documents"  # their tasks have a number of tokens in the name
Cell = tuple[str, str, str, str]  # model, dtype, mode and task


@dataclass(frozen=True)
class Speedups:
    """Of the prompts of a cell, each over the baseline; prompt lookup's is its better size."""

    ours: list[float]
    lookup: list[float]  # empty for batches
    same: int  # texts that are the baseline's
    tokens_per_call: list[float]


def speedups(*files: Raw) -> dict[Cell, Speedups]:
    """The results of ``benchmarks models``, in the order of MODELS and TASKS."""
    cells: dict[Cell, list[Raw]] = {}
    for row in (row for raw in files for row in raw.get("rows", ())):
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


def tasks(raw: Raw, long: Raw) -> str:
    """README's table: greedy speedups by task, how many calls were slower, and what was run."""
    by_mode: dict[str, dict[str, list[Speedups]]] = {"greedy": {}, "sampled": {}}
    for (_, _, mode, task), each in speedups(raw, long).items():
        by_mode[mode].setdefault(TASKS.get(task, LONG), []).append(each)
    rows = []
    for name in (*TASKS.values(), LONG):
        lookup, ours = _prompts(by_mode["greedy"].get(name, ()))
        if ours:
            rows.append((name, _mean(lookup), _mean(ours), _speed(min(ours)), _speed(max(ours))))
    slower = []
    for found in by_mode.values():
        lookup, ours = _prompts(each for cells in found.values() for each in cells)
        counts = [sum(speed < 1 for speed in speeds) for speeds in (ours, lookup)]
        slower.append(f"{counts[0]} of {len(ours)} calls (prompt lookup: {counts[1]})")
    what = []
    for file in (raw, long):
        ran = {row["model"] for row in file["rows"]}
        tokens = [row["prompt_tokens"] for row in file["rows"]]
        named = ", ".join(name for model, name in MODELS.items() if model in ran)
        what.append(f"{named} ({min(tokens):,} to {max(tokens):,} prompt tokens)")
    (dtype,) = {row["dtype"] for file in (raw, long) for row in file["rows"]}
    header = ("task", "prompt lookup", "ngramspec", "its worst prompt", "its best prompt")
    return (
        f"{markdown(header, rows)}\n\n"
        f"ngramspec was slower than plain `generate` on {slower[0]}, and with the models' own"
        f" sampling settings on {slower[1]}.\n\n"
        f"Speedups over plain `generate` of whole greedy calls in {dtype}, as geometric means:"
        f" {what[0]}; {LONG}: {what[1]}."
    )


def _prompts(cells: Iterable[Speedups]) -> tuple[list[float], list[float]]:
    """The speedups of all prompts: those of prompt lookup, and ours."""
    found = list(cells)
    return [v for each in found for v in each.lookup], [v for each in found for v in each.ours]


def models(*files: Raw) -> str:
    """The chart of all models, and below it how many texts are the baseline's."""
    return (
        "![Speed by model, task, dtype and decoding, relative to plain generate]"
        f"(pictures/models.svg)\n\n{_same_texts(speedups(*files))}"
    )


def batches(*files: Raw) -> str:
    """Speedups of batches over the baseline, and their tokens per forward."""
    found, rows = speedups(*files), []
    for (model, _, _, task), each in found.items():
        name, _, tokens = task.partition(" ")
        figures = _mean(each.ours), _mean(each.tokens_per_call)
        rows.append((MODELS[model], name, f"{int(tokens):,}", *figures))
    header = ("model", "task", "prompt tokens", "speedup", "tokens per forward")
    return f"{markdown(header, rows)}\n\n{_same_texts(found)}"


def _same_texts(found: Mapping[Cell, Speedups]) -> str:
    """How many texts are the baseline's, by dtype."""
    counts: dict[str, list[int]] = {}
    for (_, dtype, _, _), each in found.items():
        equal, calls = counts.get(dtype, (0, 0))
        counts[dtype] = [equal + each.same, calls + len(each.ours)]
    same = (f"{equal} of {calls} in {dtype}" for dtype, (equal, calls) in counts.items())
    return f"Calls with plain `generate`'s text: {', '.join(same)}."


def chart(raw: Raw, random: Raw) -> str:
    """The chart of the docs' home, and below it means and worst prompts."""
    means, worst, counts = [], [], []
    for mode in ("greedy", "sampled"):
        lookup, ours = _prompts(each for cell, each in speedups(raw).items() if cell[2] == mode)
        means += [geometric_mean(ours), geometric_mean(ours) / geometric_mean(lookup)]
        worst.append(min(ours))
        counts.append(len(ours))
    nothing = next(row for row in random["summary"] if row["way"] == "ngramspec")
    return (
        "![Speed by model and task, relative to plain generate](pictures/chart.svg)\n\n"
        f"Greedy decoding is **{means[0]:.2f}** times as fast as with plain `generate` and"
        f" **{means[1]:.2f}** times as fast as with prompt lookup (geometric means over {counts[0]}"
        f" prompts). With the models' own sampling settings it is {means[2]:.2f} and"
        f" {means[3]:.2f} times as fast. The worst prompt runs at **{min(worst):.2f}** times the"
        " baseline's speed. The weights were dequantized from 4 bits. Random text, with SmolLM2 and"
        f" {random['settings']['repeats']} calls of each prompt, runs at {nothing['ratio']:.2f}"
        f" times (worst prompt: {nothing['ratio_worst']:.2f})."
    )


def nothing(*files: Raw) -> str:
    """Speed relative to the baseline's on random text."""
    rows = []
    for raw in files:
        ours = next(row for row in raw["summary"] if row["way"] == "ngramspec")
        ratios = (_speed(ours[f"ratio{which}"], 3) for which in ("_median", "", "_worst"))
        rows.append(
            (raw["settings"]["dtype"], ours["prompts"], raw["settings"]["repeats"], *ratios)
        )
    header = ("dtype", "prompts", "calls of each", "median speedup", "mean", "worst prompt")
    return markdown(header, rows)


def lengths(*files: Raw) -> str:
    """Speedup after the prefill by the prompt's length and task, and its share of the best."""
    cells: dict[tuple[int, str], dict[str, float]] = {}
    for row in (row for raw in files for row in raw["summary"] if "ngramspec" in row["way"]):
        cells.setdefault((row["length"], row["task"]), {})[row["way"]] = row["decode_ratio"]
    rows = []
    for (tokens, task), speeds in cells.items():
        ours = speeds.pop("ngramspec")
        rows.append((f"{tokens:,}", task, _speed(ours), _speed(ours / max(speeds.values()))))
    return markdown(("prompt tokens", "task", "speedup", "share of the best fixed setting"), rows)


def replay(*files: Raw, names: Sequence[str] = ("",)) -> str:
    """Replays: a row for each drafter of each raw file."""
    means: dict[str, dict[str, Raw]] = {}
    for note, raw in zip(names, files, strict=True):
        for result in raw["results"]:
            name = f"{result['drafter']}{note and ', '}{note}"
            means.setdefault(name, {})[result["curve"]] = result["mean"]
    curves = [each for each in ("cpu", "gpu") if any(each in found for found in means.values())]
    rows = []
    for name, found in means.items():
        if not name.startswith("none"):
            speeds = (_speed(found[each]["tokens_per_cost"]) for each in curves)
            rows.append((name, *speeds, _speed(found["gpu"]["step_us_median"], 1)))
    header = ("drafter", *(f"tokens per cost, {each}" for each in curves))
    return markdown((*header, "median step, µs"), rows)


def agents(raw: Raw) -> str:
    """Tokens per cost with trees by knowledge and group; Arctic's is its better factor."""
    plans = [(group, curve) for group in raw["turns"] for curve in ("cpu", "gpu")]
    cells: dict[str, dict[tuple[str, str], float]] = {}
    for row in (row for row in raw["rows"] if row["trees"]):
        name = row["drafter"] if row["drafter"] == "ngramspec" else "Arctic"
        found = cells.setdefault(f"{name}, {row['known']}", dict.fromkeys(plans, 0.0))
        for group, speed in row["tokens_per_cost"].items():
            found[group, row["curve"]] = max(found[group, row["curve"]], speed)
    rows = [(name, *(_speed(found[plan]) for plan in plans)) for name, found in cells.items()]
    return markdown(("drafter", *(f"{group}, {curve}" for group, curve in plans)), rows)


def summaries(*files: Raw) -> str:
    """Speedup of an encoder-decoder by text and beams: means over the articles."""
    cells: dict[tuple[str, int], list[Raw]] = {}
    for raw in files:
        text = "sentences of the article" if raw["settings"].get("extract") else "recorded"
        for row in raw["rows"]:
            cells.setdefault((text, row["beams"]), []).append(row)
    rows = [
        (
            *cell,
            _mean(row["lookup"] for row in found if row["lookup"] is not None),
            _mean(row["speedup"] for row in found),
            _speed(min(row["worst"] for row in found)),
            _mean(row["tokens_per_call"] for row in found),
            sum(row["same"] for row in found),
        )
        for cell, found in cells.items()
    ]
    header = ("summary", "beams", "prompt lookup", "ngramspec", "its worst call")
    same = f"same texts, of {len(next(iter(cells.values())))}"
    return markdown((*header, "tokens per forward", same), rows)


def waits(raw: Raw) -> str:
    """Waits of the host and copies to the device in a step."""
    rows = [
        (name, each["plain"]["step"], each["ours"]["step"], each["ours"]["copies"])
        for name, each in raw["cases"].items()
    ]
    header = ("case", "waits a step, plain `generate`", "waits a step, ngramspec")
    return markdown((*header, "copies a step, ngramspec"), rows)


def divergence(*files: Raw) -> str:
    """Number of texts that differ from the baseline's, and how near to a tie they diverge."""
    rows = []
    for raw in files:
        settings = raw["settings"]
        units = [unit for unit, count in raw["histogram_ulps"].items() if count]
        way = "plain `generate`" if settings.get("plain") else "ngramspec"
        counts = (settings["prompts"], raw["ties"] + raw["wrong"], raw["wrong"])
        rows.append((settings["dtype"], way, settings["batch"], *counts, *(units[-1:] or [""])))
    header = ("dtype", "compared", "rows", "texts", "differ", "differ without a tie")
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
        alphas = sampled["alpha"][0], sampled["error"][0], sampled["match"], best["match"]
        rows.append((temperature, *(_speed(each, 3) for each in alphas)))
    header = ("temperature", "sampled, Algorithm 1", "its standard error", "sampled, exact match")
    return markdown((*header, "most frequent, exact match"), rows)


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


def stores(drafters: Raw, shared: Raw, corpus: Raw) -> str:
    """The memory and times of a request's tables, of a shared store and of a corpus."""
    readings = [each for each in drafters["readings"] if each["text"] == "natural"]
    names = {"auto": "tables of a request", "arctic, factor 4": "Arctic's suffix tree of a request"}
    rows = []
    for drafter, name in names.items():
        of_drafter = [each for each in readings if each["drafter"] == drafter]
        if of_drafter:
            last = max(of_drafter, key=lambda each: each["tokens"])
            times = last["start_us"], last["propose_us"]
            rows.append((name, last["tokens"], last["bytes_per_token"], *times))
    held, added = shared["add"]["held"], shared["add"]["us_a_token"]
    found = shared["look_up"]["us_median"], corpus["look_up"]["us_median"]
    rows.append(("namespace of a shared store", held, shared["bytes"] / held, added, found[0]))
    built = corpus["bytes_a_token"], corpus["build_us_a_token"]
    rows.append(("corpus", corpus["tokens"], *built, found[1]))
    cells = ((name, f"{n:,}", *(_speed(each, 1) for each in more)) for name, n, *more in rows)
    header = ("structure", "tokens", "bytes per token", "build, µs per token")
    return markdown((*header, "median draft or look-up, µs"), cells)


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
    """Medians of the editor benchmark: a table for each raw file, a column for each server."""
    names = {"ngramspec": "ngramspec serve", "ngramspec, no drafts": "the same, no drafts"}
    names |= {"transformers": "transformers serve", "llama_cpp": "llama_cpp.server"}
    modes = {"typing": "every 0.3 s, 3 of 4 cancelled", "pauses": "after pauses"}
    modes |= {"undo": "after pauses and undo"}
    tables = []
    for raw in files:
        settings, until = raw["settings"], raw["settings"]["until"]
        asked = Counter(each["server"] for each in raw["answers"])
        shown = [name for name in names if name in asked]
        times: dict[tuple[bool, str, str], list[float]] = {}
        begun = set()
        for each in raw["answers"]:
            file = (each["server"], each["function"])
            for part in ("first", "line"):
                times.setdefault((file in begun, part, each["server"]), []).append(each[part])
            begun.add(file)
        rows: list[Sequence[Any]] = []
        for later, part in product((False, True), ("first", "line")):
            cells = [times[later, part, name] for name in shown]
            count = len(cells[0])
            which = f"{count} later requests" if later else f"first request in {count} functions"
            end = "first token" if part == "first" else until
            rows.append((f"{which}, seconds to the {end}", *(_speed(median(c)) for c in cells)))
        right = (raw["right"].get(name, 0) for name in shown)
        rows.append((f"right lines, of {asked['ngramspec']}", *right))
        model = f"{settings['model'].removesuffix('-greedy')} in {settings['dtype']}"
        how = f"{modes[settings['mode']]}{', fill in the middle' * settings['infill']}"
        header = ("medians", *(names[name] for name in shown))
        tables.append(f"{model}, {how}, until the end of the {until}:\n\n{markdown(header, rows)}")
    return "\n\n".join(tables)
