"""The machine and the versions that figures depend on, and the peak memory of a call."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.costs.processors import cpu_flags, instruction_set, processor

if TYPE_CHECKING:
    import torch

VECTOR_FLAGS = ("amx", "avx", "fma", "asimd", "sve", "bf16")
PACKAGES = ("ngramspec", "torch", "transformers", "numpy", "triton", "arctic-inference")


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of the installed ones of these packages."""
    found = {}
    for name in packages:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """Processor, GPU if there is one, torch's threads, and versions, as plain JSON values."""
    gpu = threads = None
    if find_spec("torch") is not None:
        import torch

        threads = torch.get_num_threads()
    if threads is not None and torch.cuda.is_available():
        properties = torch.cuda.get_device_properties(0)
        gpu = {
            "name": properties.name,
            "bytes": properties.total_memory,
            "cuda": torch.version.cuda,
            "capability": list(torch.cuda.get_device_capability(0)),
        }
    return {
        "processor": processor(),
        "instructions": instruction_set(),
        "flags": sorted(each for each in cpu_flags() if each.startswith(VECTOR_FLAGS)),
        "cores": os.cpu_count(),
        "threads": threads,
        "gpu": gpu,
        "python": platform.python_version(),
        "packages": versions(PACKAGES),
    }


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its queued work; a CPU has no queue."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


class PeakMemory:
    """The peak memory since ``reset``: the device's, or this process's resident set."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.known = True

    def reset(self) -> None:
        """Start again from the memory in use now."""
        if self.device.type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.known = False

    def read(self) -> int | None:
        """Bytes at the peak; None where the system does not report them."""
        if self.device.type == "cuda":
            import torch

            return torch.cuda.max_memory_allocated(self.device)
        if not self.known:
            return None
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found[1]) if found else None
