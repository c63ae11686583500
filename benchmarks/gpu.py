"""What ngramspec gives on a GPU, within minutes and without a network.

    python -m benchmarks gpu --json gpu.json                        # 8 billion parameters
    python -m benchmarks gpu --device cpu --tiny --json gpu.json    # small: does it all run?

A model of Llama-3.1-8B's shape with random weights is forced to generate recorded traces, a passage
that repeats, and random text. Its computation is real, and so is what drafts find in the text. The
parts share ``--budget``, and are written to the file as they come:

contenders    whole calls of plain generate, prompt lookup and ngramspec, in turn, over dynamic and
              static caches. With static caches ``generate`` compiles by itself. For each way, what
              is compiled and captured, the seconds of that, and the bytes of its graphs' pools
waits         how often a step waits for the device
costs         of forwards of 1 to 128 positions at three contexts
profile       where a step's time goes
attention     the kernels, and what a number of keys that is new to them costs
same_text     tiny models in float32: is the text plain generate's?

If compiling takes too long for the budget, ngramspec has fewer widths of compiled forwards.
"""

from __future__ import annotations

import argparse
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from itertools import islice, product, zip_longest
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.callback import callback_handler
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

from benchmarks import parity
from benchmarks.harness import add_traces, write
from benchmarks.profile import profile
from benchmarks.syncs import host_syncs, syncs_per_step
from benchmarks.traces import PUBLIC
from ngramspec import Speculator
from ngramspec.cli.options import CommandOptions, check_least
from ngramspec.hf_model import compiled
from ngramspec.hf_model.compiled import CACHE_SIZE_MULTIPLE, MAX_WIDTHS, compilations
from ngramspec.measure.bench import BenchPlan, EndToEnd, SetText, summarize, to_dict
from ngramspec.measure.calls import PLAIN, Configuration, Outcome, inputs_of
from ngramspec.measure.forwards import POSITIONS_AFTER_TEXT, forced_model, forward_seconds
from ngramspec.measure.machine import synchronize
from ngramspec.measure.tasks import NOTHING, Prompt, unpredictable
from ngramspec.measure.traces import read_traces

SHAPE: tuple[str, ...] = "hidden_size", "intermediate_size", "num_hidden_layers"
SHAPE += "num_attention_heads", "num_key_value_heads", "vocab_size", "max_position_embeddings"
LLAMA_8B = dict(zip(SHAPE, (4096, 14336, 32, 32, 8, 128256, 131072), strict=True))
TINY = dict(zip(SHAPE, (32, 64, 2, 4, 2, 49152, 4096), strict=True))
MAX_PROMPT = 2048  # tokens of a trace's prompt that are kept, from its end
NEW, LEAST = 80, 48  # tokens of each text
ROUNDS = 4  # texts of each task
WAITS_GAMMA = 8  # most tokens of a draft whose steps are counted, so that there are several
WIDTHS = (1, 2, 3, 4, 6, 8, 11, 16, 24, 32, 33, 48, 64, 65, 128)
SHOWN_WIDTHS = (1, 8, 16, 32, 64)
FIXED_WIDTH = 16
COPY = "copy"
TASKS = ("edit", "summary", NOTHING, "tools", "chat", "answer", "code")  # the first to be measured
BUDGET = 600
COMPILING_SHARE, FEW_WIDTHS = 0.35, 2  # of the budget for four widths; else, how many widths
MAX_DRAFT = 65  # positions that a static cache has for drafts
HEADS, GROUPS, SIZE = 32, 8, 128  # of attention, as in Llama-3.1-8B
ROOM = 128  # free positions of the cache
WITHOUT = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
# Plain steps; with a mask as in transformers, which repeats keys and values for each query head;
# and with the heads of a group as further positions.
WAYS = (("plain", 1), ("repeated", 8), ("folded", 8), ("repeated", 33), ("folded", 33))
Tensor = torch.Tensor


def add_arguments(options: CommandOptions) -> None:
    options.json()
    add_traces(options, default=PUBLIC)
    options.text("--device", "DEVICE", "default: cuda", default="cuda")
    options.text("--budget", "SECONDS", "seconds for all parts", type=int, default=BUDGET)
    options.flag("--tiny", "a tiny model and few repeats")
    options.add("--parts", nargs="+", choices=PARTS, metavar="PART", help="only these")


def run(arguments: argparse.Namespace) -> int:
    check_least(arguments, budget=1)
    parts = Parts(arguments.budget, lambda report: write(arguments, report))
    prompts: list[Prompt] = []
    parts.run({"traces": (1, recorded(arguments.traces, prompts))})
    prompts = in_rounds(prompts, arguments.tiny)
    begin = perf_counter()
    model = build(arguments)
    parts.report["build_seconds"] = perf_counter() - begin
    longest = max(len(prompt.ids) for prompt in prompts)
    with forced_model(model, longest + NEW + POSITIONS_AFTER_TEXT) as set_text:
        scene = Scene(model, prompts, set_text, arguments.tiny, arguments.budget)
        chosen = arguments.parts or PARTS
        parts.run(
            {name: (size, part(scene)) for name, (size, part) in PARTS.items() if name in chosen}
        )
    parts.report["lines"] = lines(parts.report)
    write(arguments, parts.report)
    print("\n".join(parts.report["lines"]))
    return int(bool(parts.report["failed"]))


@dataclass(frozen=True, slots=True)
class Scene:
    """What the parts measure.

    Other parts may run between two units of a part, so each unit sets its text by ``set_text``.
    """

    model: Any
    prompts: list[Prompt]
    set_text: SetText
    tiny: bool
    budget: float

    @property
    def new(self) -> int:
        """Tokens of each text."""
        return 24 if self.tiny else NEW

    @property
    def contexts(self) -> tuple[int, ...]:
        """Tokens before the forwards whose costs are measured."""
        return (16, 64, 256) if self.tiny else (512, 4096, 32768)

    def first(self, *tasks: str) -> Prompt:
        """The first prompt of the first of these tasks that there is."""
        return next(each for task in tasks for each in self.prompts if each.task == task)


def recorded(path: Path, prompts: list[Prompt]) -> Iterator[int]:
    """Add the recorded texts of a file; yields their number."""
    for trace in read_traces(path):
        if len(trace.output) >= LEAST:
            ids, text = trace.prompt[-MAX_PROMPT:], trace.output[:NEW]
            prompts.append(Prompt(trace.group, trace.id, (*ids.tolist(),), (*text.tolist(),)))
    yield len(prompts)


def in_rounds(prompts: Sequence[Prompt], tiny: bool) -> list[Prompt]:
    """A prompt of each task in turn, with a passage that repeats and random texts among them."""
    passage = random.Random(0).choices(range(3, TINY["vocab_size"]), k=NEW)
    copy = Prompt(COPY, "a passage four times", (*passage * 4,), (*passage,))
    tasks: dict[str, list[Prompt]] = {task: [] for task in TASKS}
    for prompt in (*prompts, copy):
        tasks.setdefault(prompt.task, []).append(prompt)
    tasks[NOTHING] = unpredictable((*prompts, copy), NEW, TINY["vocab_size"])
    rounds = islice(zip_longest(*tasks.values()), 1 if tiny else ROUNDS)
    return [prompt for each in rounds for prompt in each if prompt is not None]


def build(arguments: argparse.Namespace) -> Any:
    """The model, with random weights made on its device."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    shape = TINY if arguments.tiny else LLAMA_8B
    config = LlamaConfig(**shape, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(0)
    with torch.device(arguments.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return model.eval()


def waits(scene: Scene) -> Iterator[dict[str, Any]]:
    """How often a step waits for the device: by kind, and the baseline's mean."""
    several = {"rows": 4, "repetition_penalty": 1.2}
    kinds: tuple[tuple[str, str, dict[str, Any]], ...] = (
        ("copy", COPY, {}),
        ("random", NOTHING, {}),
        ("sampled", COPY, {"do_sample": True, "temperature": 0.7, "top_k": 20}),
        ("4 rows", COPY, {"rows": 4}),
        ("4 rows, repetition penalty", COPY, several),
    )
    found: dict[str, Any] = {}
    for kind, task, given in kinds:
        prompt = scene.first(task)
        scene.set_text(prompt.whole)
        speculator = Speculator(gamma_max=WAITS_GAMMA)
        found[kind] = syncs_per_step(scene.model, prompt.ids, scene.new, speculator, **given)
        yield found
    prompt, counts = scene.first(NOTHING), []
    scene.set_text(prompt.whole)
    for new in (1, scene.new):
        with host_syncs(scene.model.device) as places:
            inputs = inputs_of(scene.model, prompt.ids)
            scene.model.generate(**inputs, do_sample=False, max_new_tokens=new)
        counts.append(len(places))
    mean = round((counts[1] - counts[0]) / (scene.new - 1), 2)
    found["baseline"] = {"median": mean, "most": mean}
    yield found


class Compiling:
    """What is compiled, and captured as CUDA graphs, inside ``counted`` blocks.

    Attributes:
        found: by name of the block: the ``compilations`` and their ``seconds``, the ``captures``,
            and the bytes that were added to the graphs' own ``pools`` (None without CUDA).
    """

    def __init__(self) -> None:
        self.found: dict[str, dict[str, Any]] = {}
        self._depth, self._began, self._seconds = 0, 0.0, 0.0
        callback_handler.register_start_callback(self._start)
        callback_handler.register_end_callback(self._end)

    def _start(self, *_: Any) -> None:
        self._began = self._began if self._depth else perf_counter()
        self._depth += 1

    def _end(self, *_: Any) -> None:
        self._depth -= 1
        self._seconds += 0.0 if self._depth else perf_counter() - self._began

    @contextmanager
    def counted(self, name: str) -> Iterator[None]:
        found = self.found.setdefault(name, {"compilations": 0, "seconds": 0.0, "captures": 0})
        before, seconds, pools = compilations(), self._seconds, pool_bytes()
        capture = torch.cuda.graph.__enter__

        def enter(graph: Any) -> Any:
            found["captures"] += 1
            return capture(graph)

        with patch.object(torch.cuda.graph, "__enter__", enter):
            yield
        found["compilations"] += compilations() - before
        found["seconds"] += self._seconds - seconds
        now = pool_bytes()
        found["pools"] = None if now is None else found.get("pools", 0) + now - (pools or 0)


def pool_bytes() -> int | None:
    """The bytes of the CUDA graphs' own pools; None without CUDA."""
    if not torch.cuda.is_available():
        return None
    cuda: Any = torch.cuda
    pools = [each for each in cuda.memory_snapshot() if any(each.get("segment_pool_id", ()))]
    return int(sum(each["total_size"] for each in pools))


class Bench(EndToEnd):
    """Whole calls, one prompt after another."""

    def __init__(self, scene: Scene, ways: list[Configuration], prompts: list[Prompt]) -> None:
        plan = BenchPlan(1 if scene.tiny else 2, scene.new, 2, cost_repeats=1 if scene.tiny else 3)
        super().__init__(scene.model, ways, plan, set_text=scene.set_text)
        self.prompts, self.budget = prompts, scene.budget
        self.compiling = Compiling()

    def call(self, configuration: Configuration, prompt: Prompt, new: int) -> Outcome:
        """See EndToEnd."""
        with self.compiling.counted(configuration.name):
            return super().call(configuration, prompt, new)

    def units(self) -> Iterator[dict[str, Any]]:
        """Try every configuration, and then measure prompt by prompt; yields all results so far."""
        longest = max(self.prompts, key=lambda prompt: len(prompt.ids))
        with ExitStack() as fewer:
            for way in self.configurations[:]:
                self.try_out(way, longest)
                if way.name == STATIC:
                    seconds = self.compiling.found[STATIC]["seconds"]
                    if (MAX_WIDTHS + 1) * seconds > COMPILING_SHARE * self.budget:
                        fewer.enter_context(patch.object(compiled, "MAX_WIDTHS", FEW_WIDTHS))
                yield self.found()
            for prompt in self.prompts:
                self.measure((prompt.task, None), [prompt])
                yield self.found()

    def found(self) -> dict[str, Any]:
        """All results so far."""
        graphs = {"compiling": self.compiling.found, "widths": compiled.MAX_WIDTHS}
        return {"summary": summarize(self.measured), **to_dict(self.measured), **graphs}


STATIC, OURS, OURS_STATIC = "plain, static", "ngramspec", "ngramspec, static"


def contenders(scene: Scene) -> Iterator[dict[str, Any]]:
    """Whole calls. All static caches have one size, so that each forward is compiled once."""
    longest = max(len(prompt.ids) for prompt in scene.prompts) + scene.new + MAX_DRAFT
    size = -(-longest // CACHE_SIZE_MULTIPLE) * CACHE_SIZE_MULTIPLE
    static = {"cache_implementation": "static", "max_cache_len": size}
    lookup = {"prompt_lookup_num_tokens": 10}
    ways = [
        Configuration(PLAIN),
        Configuration(STATIC, static, compiled=True),
        Configuration(OURS, {}, {}),
        Configuration(OURS_STATIC, static, {}, compiled=True),
        Configuration(
            f"{OURS_STATIC}, width {FIXED_WIDTH}", static, {"width": FIXED_WIDTH}, compiled=True
        ),
        Configuration("lookup", lookup),
        Configuration("lookup, static", lookup | static, compiled=None),
    ]
    return Bench(scene, ways, scene.prompts).units()


def costs(scene: Scene) -> Iterator[dict[int, dict[int, float]]]:
    """Seconds of a forward by context and positions."""
    found = {}
    for length in scene.contexts:  # which are longer than the texts
        scene.set_text(None)
        found[length] = forward_seconds(scene.model, length, WIDTHS, 1 if scene.tiny else 5)
        yield found


def steps(scene: Scene) -> Iterator[list[dict[str, Any]]]:
    """The seconds of a step by section: of a text that copies, and of random text."""
    prompts, rows = (scene.first(TASKS[0], COPY), scene.first(NOTHING)), []
    for row in profile(scene.model, prompts, scene.new, 1, scene.set_text):
        rows.append(row)
        yield rows


def attention(scene: Scene) -> Iterator[list[Any]]:
    """See ``attention_costs``."""
    layers = scene.model.config.num_hidden_layers
    return attention_costs(scene.model.device, scene.contexts[::2], layers)


def same_text(scene: Scene) -> Iterator[list[dict[str, Any]]]:
    """Families of models, with caches, processors and batches; a wrong text is an error."""
    cells, wrong = [], []
    for cell in islice(parity.matrix(5, scene.model.device), 4 if scene.tiny else None):
        cells.append(asdict(cell))
        if cell.outcome == "wrong":
            wrong.append(f"{cell.model}, {cell.what}: {cell.detail}")
            print(f"another text: {wrong[-1]}", file=sys.stderr)
        yield cells
    if wrong:
        raise ValueError(f"another text: {'; '.join(wrong)}")


# What is done, in this order, with its share of the budget.
PARTS: dict[str, tuple[int, Callable[[Scene], Iterator[Any]]]] = {
    "contenders": (70, contenders),
    "waits": (5, waits),
    "costs": (8, costs),
    "profile": (5, steps),
    "same_text": (6, same_text),
    "attention": (6, attention),
}


def lines(report: dict[str, Any]) -> list[str]:
    """The results in short, as far as they were measured."""
    contenders = report.get("contenders") or {}
    found = [
        (f"speed of {way}, over {PLAIN} and {STATIC}", ratios)
        for way, ratios in speedups(contenders.get("summary", ())).items()
    ]
    for way, each in contenders.get("compiling", {}).items():
        if each["compilations"]:
            size = "" if each["pools"] is None else f", {each['pools'] / 1e6:.0f} MB of pools"
            counts = f"{each['compilations']} compilations, {each['captures']} captures"
            found.append((f"compiling {way}", [f"{counts}, {each['seconds']:.0f} s{size}"]))
    by_context = [
        f"{' '.join(f'{seconds[n] / seconds[1]:.2f}' for n in SHOWN_WIDTHS)}"
        f" of {1000 * seconds[1]:.1f} ms at {context}"
        for context, seconds in report.get("costs", {}).items()
    ]
    found.append((f"cost of {', '.join(map(str, SHOWN_WIDTHS))} positions", by_context))
    by_kind = [
        f"{kind} {row['median']:g} (at most {row['most']:g})"
        for kind, row in report.get("waits", {}).items()
    ]
    found.append(("waits a step", by_kind))
    return [f"{title}: {'; '.join(values)}" for title, values in found if values]


def speedups(summary: Sequence[dict[str, Any]]) -> dict[str, list[str]]:
    """For each way but the first baseline, by task: its speed over both baselines."""
    by_task: dict[str, dict[str, float]] = {}
    for row in summary:
        by_task.setdefault(row["task"], {})[row["way"]] = row["ratio"]
    found: dict[str, list[str]] = {}
    for task, ratio in by_task.items():
        for way in ratio.keys() - {PLAIN}:
            static = f"{ratio[way] / ratio[STATIC]:.2f}" if STATIC in ratio else "?"
            found.setdefault(way, []).append(f"{task} {ratio[way]:.2f}, {static}")
    return found


def attend_as(way: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Attention of n positions, (1, HEADS, n, SIZE), by one of WAYS."""
    if way == "plain":
        return attend(q, k, v, enable_gqa=True)
    if way == "folded":
        mask = mask.repeat(1, 1, HEADS // GROUPS, 1)
        return attend(q.reshape(1, GROUPS, -1, SIZE), k, v, attn_mask=mask).reshape(q.shape)
    k, v = (each.repeat_interleave(HEADS // GROUPS, dim=1) for each in (k, v))
    return attend(q, k, v, attn_mask=mask)


def attention_costs(
    device: torch.device, contexts: Sequence[int], layers: int
) -> Iterator[list[dict[str, Any]]]:
    """Milliseconds of the first call at each of four lengths, and of a model's layers at the last.

    Yields all rows so far.
    """
    rows: list[dict[str, Any]] = []
    for context, (way, n), cudnn in product(contexts, WAYS, (True, False)):
        row: dict[str, Any] = {"way": way, "n": n, "context": context, "cudnn": cudnn}
        try:
            with nullcontext() if cudnn else sdpa_kernel(WITHOUT):
                found = [timed(way, n, context + 7 * at, device, layers) for at in range(4)]
            row |= {"new_ms": [first for first, _ in found], "ms": found[-1][1]}
        except RuntimeError as error:
            row["error"] = str(error).partition("\n")[0]
        rows.append(row)
        yield rows


def timed(way: str, n: int, keys: int, device: torch.device, layers: int) -> tuple[float, float]:
    """Milliseconds of the first call, and of ``layers`` further ones."""
    given: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    q = torch.randn(1, HEADS, n, SIZE, **given)
    k, v = torch.randn(2, 1, GROUPS, keys + ROOM, SIZE, **given)[:, :, :, :keys]
    last = torch.arange(n, device=device)[:, None] + keys - n
    mask = (torch.arange(keys, device=device)[None] <= last)[None, None]

    def run(times: int) -> float:
        synchronize(device)
        begin = perf_counter()
        for _ in range(times):
            attend_as(way, q, k, v, mask)
        synchronize(device)
        return 1000 * (perf_counter() - begin)

    return run(1), median(run(layers) for _ in range(3))


class Parts:
    """Runs parts one after another, each within its share of the seconds that are left.

    A part is an iterator. Each unit of its work yields everything that the part has found so far,
    which is saved. A unit begins only if one of average length would end in time. Parts that were
    not done in their shares go on at the end, in their order, if seconds are left. The error of a
    part that fails is kept, and the others go on.

    Attributes:
        report: by part: what it has found; "seconds", "failed" and "unfinished" of all parts.
    """

    def __init__(
        self,
        budget: float,
        save: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._save, self._clock = save, clock
        self._end = clock() + budget
        self._units: dict[str, int] = {}
        self.report: dict[str, Any] = {"seconds": {}, "failed": {}, "unfinished": []}

    def run(self, parts: Mapping[str, tuple[float, Iterator[Any]]]) -> None:
        """Run parts, given with the sizes of their shares."""
        shares = sum(share for share, _ in parts.values())
        unfinished: list[str] = self.report["unfinished"]
        for name, (share, units) in parts.items():
            now = self._clock()
            if not self._advance(name, units, now + (self._end - now) * share / shares):
                unfinished.append(name)
            shares -= share
        for name in unfinished[:]:
            if self._advance(name, parts[name][1], self._end):
                unfinished.remove(name)
        self._save(self.report)

    def _advance(self, name: str, units: Iterator[Any], until: float) -> bool:
        """Run units of a part until a time; whether it is done."""
        seconds = self.report["seconds"]
        begin, before, done = self._clock(), seconds.get(name, 0.0), False
        while not done:
            count, spent = self._units.get(name, 0), seconds.get(name, 0.0)
            if self._clock() + (spent / count if count else 0.0) > until:
                break
            try:
                self.report[name] = next(units)
            except StopIteration:
                done = True
            except Exception as error:
                self.report["failed"][name] = traceback.format_exc()
                print(f"failed: {name}: {type(error).__name__}: {error}", file=sys.stderr)
                done = True
            self._units[name] = count + 1
            seconds[name] = before + self._clock() - begin
            self._save(self.report)
        print(f"{name}: {seconds.get(name, 0.0):.0f} s{'' if done else ', unfinished'}", flush=True)
        return done
