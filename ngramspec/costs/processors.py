"""Initial costs of forwards, by the processor's instruction set and the dtype.

The tables of CPUs are of SmolLM2-135M-Instruct with one sequence. ``python -m benchmarks costs``
measures such a table. Processes correct their costs from the first drafted steps on.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Mapping
from functools import cache
from pathlib import Path

import numpy as np

from ngramspec.draft import Float64

GPU = "gpu"
# Instruction sets of CPUs, the most capable one first; "cpu": any other.
AMX, AVX512_BF16, AVX512, AVX2, ARM, CPU = "amx", "avx512_bf16", "avx512", "avx2", "arm", "cpu"
# Each set, and the flags of /proc/cpuinfo and of torch.cpu.get_capabilities that show it.
_FLAGS = {
    AMX: {"amx_bf16"},
    AVX512_BF16: {"avx512_bf16"},
    AVX512: {"avx512f", "avx512_f"},
    AVX2: {"avx2"},
}
AVX512_BF16_AMD = "avx512_bf16_amd"  # costs less than on Intel
FLOAT32, BFLOAT16 = "float32", "bfloat16"

Costs = Mapping[int, float]  # positions -> cost, relative to one; linear in between, and beyond
MANY_POSITIONS = 1 << 16  # costs are extrapolated up to there

# Assumed: a 7-8B model on one data-centre GPU.
GPU_COSTS: Costs = {
    **{1: 1, 2: 1, 3: 1, 5: 1.0, 8: 1.0, 11: 1.0, 16: 1.01, 24: 1.02, 32: 1.03},
    **{48: 1.05, 64: 1.07, 128: 1.15},
}
# Measured with two cores of an Intel Xeon with AMX, of one without, and of an AMD EPYC
# (benchmarks/results/e2e_bfloat16.json and e2e_float32.json, the medians over its tasks). AVX2: one
# core of an AMD EPYC (costs.json). It converts bfloat16, so wide forwards are expensive.
_MEASURED: dict[tuple[str, str], Costs] = {
    (AMX, BFLOAT16): {
        **{1: 1, 2: 1.03, 3: 1.04, 5: 1.05, 8: 1.07, 11: 1.10, 16: 1.14, 24: 1.21, 32: 1.29},
        **{48: 1.52, 64: 1.65, 128: 3.0},
    },
    (AMX, FLOAT32): {
        **{1: 1, 2: 1.05, 3: 1.12, 5: 1.5, 8: 1.75, 11: 2.1, 16: 1.97, 24: 2.25, 32: 2.5},
        **{48: 3.0, 64: 3.4, 128: 6.2},
    },
    (AVX512_BF16, BFLOAT16): {
        **{1: 1, 2: 1.21, 4: 1.29, 8: 1.54, 11: 1.72, 16: 2.03, 24: 2.51, 32: 2.95},
        **{48: 4.07, 65: 4.81},
    },
    (AVX512_BF16, FLOAT32): {
        **{1: 1, 2: 1.10, 4: 1.49, 8: 1.81, 11: 2.08, 16: 2.03, 24: 2.29, 32: 2.52},
        **{48: 3.06, 65: 3.98},
    },
    (AVX512_BF16_AMD, BFLOAT16): {
        **{1: 1, 2: 0.88, 3: 0.92, 4: 0.97, 5: 0.99, 6: 1.0, 8: 1.07, 11: 1.14, 17: 1.25},
        **{24: 1.38, 32: 1.59, 65: 2.85},
    },
    (AVX512_BF16_AMD, FLOAT32): {
        **{1: 1, 2: 1.55, 3: 1.9, 4: 1.37, 5: 1.33, 6: 1.37, 8: 1.39, 11: 1.78, 16: 1.56},
        **{24: 1.96, 32: 2.25, 48: 2.81, 64: 3.76},
    },
    (AVX2, FLOAT32): {
        **{1: 1, 2: 1.59, 3: 1.97, 4: 1.58, 5: 1.79, 6: 1.9, 8: 1.96, 11: 2.53, 16: 2.56},
        **{24: 3.07, 32: 3.46, 48: 4.28, 65: 5.16, 128: 8.76},
    },
    (AVX2, BFLOAT16): {
        **{1: 1, 2: 1.27, 3: 1.7, 4: 2.1, 5: 2.38, 6: 2.81, 8: 3.58, 11: 5.06, 16: 6.96},
        **{24: 10.29, 32: 12.64, 48: 17.52, 65: 24.59, 128: 48.78},
    },
}

# Relative cost that a row adds to an engine's step of one row, on a CPU, and the number of rows
# that a drafted token counts as. Measured in float32: 0.057 and 0.6 (vLLM, SmolLM2-135M, one core).
# bfloat16 is guessed. "quantized" is for llama.cpp, where a token costs 0.1 to 0.7, depending on
# the type of the weights.
ENGINE_ROW_COSTS = {FLOAT32: 0.06, BFLOAT16: 0.04, "quantized": 0.3}
ENGINE_TOKEN_COUNT = 0.7
MAX_ENGINE_TOKENS = 1024  # drafted tokens of an engine's step that have a known cost


def initial_costs(machine: str, dtype: str) -> Costs:
    """The costs of forwards until they are measured.

    Args:
        machine: "gpu", or the kind of a CPU, see ``cpu_kind``.
        dtype: name of the model's dtype.

    Returns:
        Cost by width. Without a measured table, as for Arm, float16, and AVX-512 with bfloat16
        converted, it is the one with the highest costs of the dtype, so that only drafts with a
        high expected gain are verified before the costs are known.
    """
    if machine == GPU:
        return GPU_COSTS
    if (machine, dtype) == (AVX512, FLOAT32):
        machine = AVX512_BF16  # the same instructions in float32
    highest = _MEASURED[AVX2, FLOAT32 if dtype == FLOAT32 else BFLOAT16]
    return _MEASURED.get((machine, dtype), highest)


def extended(table: Costs) -> tuple[Float64, Float64]:
    """A table's positions and costs, float64 (n,), with a last one that continues its last slope.

    No cost is below half of the last one.
    """
    at, costs = np.array(list(table), np.float64), np.array(list(table.values()), np.float64)
    slope = (costs[-1] - costs[-2]) / (at[-1] - at[-2])
    last = max(costs[-1] + slope * (MANY_POSITIONS - at[-1]), 0.5 * costs[-1])
    return np.append(at, MANY_POSITIONS), np.append(costs, last)


@cache
def cpu_kind() -> str:
    """The kind of this machine's CPU that its initial costs depend on."""
    name = instruction_set()
    return AVX512_BF16_AMD if name == AVX512_BF16 and "AMD" in processor() else name


def instruction_set() -> str:
    """The most capable instruction set of this machine's CPU."""
    return best_set(cpu_flags(), platform.machine())


def best_set(flags: Collection[str], architecture: str) -> str:
    """The most capable instruction set of a CPU, by the feature flags that it reports.

    ``architecture`` is what ``platform.machine`` returns.
    """
    if architecture.lower() in ("arm64", "aarch64"):
        return ARM
    return next((name for name, shown in _FLAGS.items() if not shown.isdisjoint(flags)), CPU)


@cache
def cpu_flags() -> frozenset[str]:
    """The features that the CPU reports: /proc/cpuinfo's, or torch's where that does not exist."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _cpuinfo(), re.MULTILINE)
    if found:
        return frozenset(found[1].split())
    import torch

    capabilities = getattr(torch.cpu, "get_capabilities", dict)  # torch 2.6 does not have it
    known: dict[str, object] = capabilities()
    return frozenset(name for name, value in known.items() if value is True)


def processor() -> str:
    """The name of this machine's processor."""
    names = re.findall(r"model name\s*:\s*(.*)", _cpuinfo())
    return str(names[0]) if names else platform.processor()


def _cpuinfo() -> str:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
