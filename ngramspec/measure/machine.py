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
from ngramspec.costs.saved import device_name

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
        device = accelerator()
        if device is not None:
            about = getattr(torch.get_device_module(device), "get_device_properties", None)
            gpu = {
                **{"type": device.type, "name": device_name(device)},
                "bytes": None if about is None else about(device).total_memory,  # Apple's share RAM
                **{"cuda": torch.version.cuda, "rocm": torch.version.hip},
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


def accelerator() -> torch.device | None:
    """The first GPU of torch's kind ("cuda", also of AMD, "xpu" or "mps"); None without one."""
    import torch

    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return None if found is None else torch.device(found.type, 0)


def synchronize(device: torch.device) -> None:
    """Wait until a device has finished its queued work; a CPU has no queue."""
    import torch

    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class PeakMemory:
    """The peak memory since ``reset``: the device's, or this process's resident set."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self.device = device
        self.known = True
        self._module = None if device.type == "cpu" else torch.get_device_module(device)

    def reset(self) -> None:
        """Start again from the memory in use now."""
        if self._module is not None:
            self.known = hasattr(self._module, "reset_peak_memory_stats")  # Apple's GPUs: no
            if self.known:
                self._module.reset_peak_memory_stats(self.device)
            return
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            self.known = False

    def read(self) -> int | None:
        """Bytes at the peak; None where the system does not report them."""
        if not self.known:
            return None
        if self._module is not None:
            return int(self._module.max_memory_allocated(self.device))
        found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
        return 1024 * int(found[1]) if found else None
