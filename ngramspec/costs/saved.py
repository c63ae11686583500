"""Costs that ``ngramspec calibrate`` has measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ngramspec.costs.processors import processor
from ngramspec.files import write_text

FORMAT = "ngramspec costs 1"


def device_name(device: Any) -> str:
    """The name of a torch device: the GPU's, or the processor's on a CPU and on Apple's GPUs."""
    import torch

    named = getattr(torch.get_device_module(device), "get_device_name", None)
    return processor() if named is None else str(named(device))


def described(model: Any, attention: str, device: Any) -> dict[str, Any]:
    """What the costs of a model's forwards on a torch device depend on, as JSON values.

    ``attention`` is the name of the attention implementation of its decoder.
    """
    import torch

    return {
        "model": type(model).__name__,
        "parameters": sum(each.numel() for each in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": attention,
        "device": device_name(device),
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }


@dataclass(frozen=True, slots=True)
class SavedCosts:
    """Forward times of one sequence, by context length and width.

    Attributes:
        depends: the result of ``described`` for the measured model.
        seconds: positions in the cache -> width -> seconds.
    """

    depends: dict[str, Any]
    seconds: dict[int, dict[int, float]]

    def write(self, path: Path) -> None:
        """Write a JSON file."""
        seconds = {str(at): of for at, of in sorted(self.seconds.items())}
        fields = {"format": FORMAT, "depends": self.depends, "seconds": seconds}
        write_text(path, json.dumps(fields, indent=1) + "\n")

    @classmethod
    def read(cls, path: Path) -> SavedCosts:
        """Read a file that ``write`` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is not such a file. The message names the cause.
        """
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            if fields["format"] != FORMAT:
                raise ValueError(f"format must be {FORMAT!r}, got {fields['format']!r}")
            seconds = {
                int(at): {int(width): float(each) for width, each in sorted(of.items())}
                for at, of in fields["seconds"].items()
            }
            depends = dict(fields["depends"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path} is not a file of ngramspec calibrate: {error}") from error
        for at, of in seconds.items():
            if 1 not in of or not all(0 < each < float("inf") for each in of.values()):
                raise ValueError(f"{path}: context {at} needs a time for width 1, all times > 0")
        if not seconds:
            raise ValueError(f"{path} holds no times")
        return cls(depends, seconds)

    def differences(self, model: Any, attention: str, device: Any) -> list[str]:
        """The differences of this model and machine to ``depends``. Empty: the costs apply."""
        here = described(model, attention, device)
        return [
            f"{name} is {here[name]}, was {self.depends.get(name)}"
            for name in here
            if here[name] != self.depends.get(name)
        ]

    def near(self, length: int) -> dict[int, float]:
        """Relative costs by width, measured in the context whose length is the nearest."""
        nearest = min(self.seconds, key=lambda at: abs(math.log(max(at, 1) / max(length, 1))))
        times = self.seconds[nearest]
        costs = {width: times[width] / times[1] for width in sorted(times)}
        widest = max(costs)
        return costs | {2 * widest: 2 * costs[widest]}  # each further position adds the mean cost
