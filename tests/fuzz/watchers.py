"""Users' own processors, criteria and streamers, which write down what they are shown."""

from __future__ import annotations

import random
from typing import Any

import torch

from fuzz import state

PROCESSORS = (
    *("watch", "stateful", "history", "in place", "forbid last", "raises", "column bias"),
    *("nothing", "nan row", "looks"),
)
CRITERIA = ("watch", "bool", "rows", "column", "scores", "raises", "list", "looks")


class Log(list[tuple[Any, ...]]):
    """What was shown to watchers, in order.

    Attributes:
        model: of the calls.
        found: what those found who looked at the model meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.model: Any = None
        self.found: set[str] = set()

    def look(self) -> None:
        """Save the model, as another thread may do at any time."""
        self.found |= state.saved(self.model)


class Processor:
    """A logits processor of a kind; some count their calls."""

    def __init__(self, kind: str, seed: int, log: Log) -> None:
        self.kind, self.log, self.calls = kind, log, 0
        self.at = random.Random(f"processor {seed}").randrange(1, 12)

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.Tensor:
        self.calls += 1
        seen = str(input_ids.dtype), input_ids.tolist(), tuple(scores.shape)
        self.log.append(("processor", self.kind, *seen))
        if self.kind == "looks":
            self.log.look()
        vocab = scores.shape[-1]
        if self.kind == "raises" and self.calls == self.at:
            raise RuntimeError("the processor raises")
        if self.kind == "stateful":
            scores = scores.clone()
            scores[:, (self.calls * 7) % vocab] += 3.0
        elif self.kind == "history":
            places = input_ids.clamp(min=0).sum(dim=1, keepdim=True) % vocab
            scores = scores.scatter_add(1, places, torch.full_like(places, 3).to(scores.dtype))
        elif self.kind == "in place":
            scores[:, 11] -= 2.0
        elif self.kind == "forbid last":
            last = input_ids[:, -1:].clamp(0, vocab - 1)
            scores = scores.scatter(1, last, -float("inf"))
        elif self.kind == "column bias":  # rows look at one another
            scores = scores + scores.mean(dim=0, keepdim=True)
        elif self.calls == self.at and self.kind == "nothing":
            scores = torch.full_like(scores, -float("inf"))
        elif self.calls == self.at and self.kind == "nan row":
            scores = scores.clone()
            scores[self.at % len(scores), 3] = float("nan")
        return scores


class Criterion:
    """A stopping criterion of a kind."""

    def __init__(self, kind: str, seed: int, log: Log) -> None:
        self.kind, self.log, self.calls = kind, log, 0
        self.at = random.Random(f"criterion {seed}").randrange(2, 14)

    def __call__(self, input_ids: torch.LongTensor, scores: Any, **kwargs: Any) -> Any:
        self.calls += 1
        known = len(scores) if isinstance(scores, tuple | list) else type(scores).__name__
        self.log.append(("criterion", self.kind, input_ids.tolist(), known))
        if self.kind == "looks":
            self.log.look()
        if self.kind == "raises" and self.calls == self.at:
            raise RuntimeError("the criterion raises")
        over = self.calls >= self.at
        rows = torch.full((len(input_ids),), over)
        if self.kind == "bool":
            return over
        if self.kind == "column":
            return rows[:, None]
        if self.kind == "rows":
            return input_ids[:, -1] % 9 == 3
        if self.kind == "list":
            return rows.to(torch.uint8).bool()
        return torch.zeros(len(input_ids), dtype=torch.bool)


class Streamer:
    """Writes down every ``put`` and ``end``; it may look, and raises at the put ``last``."""

    def __init__(self, log: Log, last: int | None, *, looks: bool) -> None:
        self.log, self.last, self.looks, self.puts = log, last, looks, 0

    def put(self, value: torch.Tensor) -> None:
        self.puts += 1
        if self.puts == self.last:
            raise OSError("the streamer raises")
        self.log.append(("put", tuple(value.shape), str(value.dtype), value.tolist()))
        if self.looks:
            self.log.look()

    def end(self) -> None:
        self.log.append(("end",))
