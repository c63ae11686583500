"""Which initial costs apply, and what calls lose while they are wrong."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from statistics import geometric_mean

import numpy as np
import pytest
from simulated_machine import CLOCKS, call_share

from ngramspec.costs import processors
from ngramspec.costs.model import ForwardKind
from ngramspec.costs.processors import (
    AMX,
    ARM,
    AVX2,
    AVX512,
    AVX512_BF16,
    AVX512_BF16_AMD,
    CPU,
    GPU,
    best_set,
    extended,
    initial_costs,
)

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "costs.json"
XEON = "sse2 avx avx2 avx512f avx512_bf16"  # and, with AMX, " amx_bf16 amx_tile"


@pytest.mark.parametrize(
    ("flags", "architecture", "expected"),
    [
        (f"{XEON} amx_bf16 amx_tile", "x86_64", AMX),
        (XEON, "x86_64", AVX512_BF16),
        ("avx2 avx512f", "x86_64", AVX512),
        ("avx2 avx512_f", "AMD64", AVX512),
        ("avx avx2", "x86_64", AVX2),
        ("sse2", "x86_64", CPU),
        ("", "x86_64", CPU),
        ("fp asimd bf16", "aarch64", ARM),
        ("", "arm64", ARM),
    ],
)
def test_the_most_capable_instruction_set_is_found(flags, architecture, expected):
    assert best_set(frozenset(flags.split()), architecture) == expected


@pytest.fixture
def cpuinfo(monkeypatch):
    """Replaces the list of processors, and the architecture."""

    def replace(text):
        monkeypatch.setattr(processors, "_cpuinfo", lambda: text)
        forget()

    def forget():
        processors.cpu_flags.cache_clear()
        processors.cpu_kind.cache_clear()

    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    yield replace
    forget()


def test_flags_are_read_from_the_list_of_processors(cpuinfo):
    cpuinfo("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx2 amx_bf16\n" * 2)
    assert processors.cpu_flags() == {"fpu", "avx2", "amx_bf16"}
    assert processors.processor() == "Some CPU @ 2 GHz"
    cpuinfo("")
    assert not processors.cpu_flags() & {"cpu_name", "architecture"}  # torch names features


@pytest.mark.parametrize(
    ("name", "flags", "kind"),
    [
        ("AMD EPYC 9R14", XEON, AVX512_BF16_AMD),
        ("Intel(R) Xeon(R) Processor", XEON, AVX512_BF16),
        ("AMD EPYC", "avx avx2", AVX2),
    ],
)
def test_costs_with_avx512_bf16_are_those_of_the_maker(cpuinfo, name, flags, kind):
    cpuinfo(f"model name\t: {name}\nflags\t\t: {flags}\n")
    assert processors.cpu_kind() == kind


def test_what_is_not_measured_begins_with_the_highest_costs():
    for machine in (ARM, CPU):
        for dtype in ("float32", "bfloat16"):
            assert initial_costs(machine, dtype) is initial_costs(AVX2, dtype)
    assert initial_costs(AVX512, "bfloat16") is initial_costs(AVX2, "bfloat16")
    assert initial_costs(AMX, "float16") is initial_costs(AVX2, "bfloat16")
    assert initial_costs(AVX512, "float32") is initial_costs(AVX512_BF16, "float32")
    for dtype in ("float32", "bfloat16"):
        widths = np.arange(8, 66)
        highest = np.interp(widths, *extended(initial_costs(AVX2, dtype)))
        for machine in (AMX, AVX512_BF16, AVX512_BF16_AMD, GPU):
            assert (np.interp(widths, *extended(initial_costs(machine, dtype))) <= highest).all()


def test_the_table_of_avx2_is_the_raw_files():
    rows = json.loads(MEASURED.read_text(encoding="utf-8"))["rows"]
    for row in rows:
        rounded = {int(width): round(cost, 2) for width, cost in row["costs"].items()}
        assert rounded == initial_costs(AVX2, row["dtype"])


@cache
def unpredictable(count: int) -> list[tuple[np.ndarray, int]]:
    """Prompts that repeat their own phrases, each followed by 96 random tokens."""
    texts = []
    for seed in range(count):
        rng = random.Random(seed)
        phrases = [[rng.randrange(49152) for _ in range(rng.randrange(2, 9))] for _ in range(40)]
        prompt = [token for _ in range(90) for token in rng.choice(phrases)]
        text = prompt[:480] + rng.choices(range(49152), k=96)
        texts.append((np.array(text, np.int32), len(text) - 96))
    return texts


STARTS = [
    (AMX, "bfloat16"),
    (AVX512_BF16, "bfloat16"),
    (AVX512_BF16_AMD, "bfloat16"),
    (AVX2, "float32"),
]


@pytest.mark.every(6)
@pytest.mark.parametrize("actual", STARTS, ids=str)
@pytest.mark.parametrize("start", STARTS, ids=str)
def test_calls_with_nothing_to_predict_lose_little(start, actual):
    """Each call is the first one of its process; the machine may be another than is assumed."""
    kind, machine = ForwardKind(*start), initial_costs(*actual)
    for clock in ("quiet", "stalling") if start == actual else ("stalling",):
        shares = [
            call_share(kind, machine, CLOCKS[clock], text, prompt, seed=seed)
            for seed, (text, prompt) in enumerate(unpredictable(12))
        ]
        if start == actual:
            assert geometric_mean(shares) >= 0.99
            assert min(shares) >= 0.97
        else:
            assert geometric_mean(shares) >= 0.97
            assert min(shares) >= 0.8
