"""The options of all engine integrations, read from a dict of JSON values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ngramspec.costs.engine import EngineCosts, GivenEngineCosts, LearnedEngineCosts
from ngramspec.drafters.registry import Policy, build_drafter
from ngramspec.engines.rows import Rows
from ngramspec.errors import check_int
from ngramspec.stores import open_stores


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options for drafting in an engine.

    Attributes:
        drafter: description of the drafter for ``build_drafter``.
        policy: policy of the drafter, also for ``build_drafter``.
        costs: "learned" from the engine's steps; "none": all drafts have up to k tokens; or a
            table, number of rows -> drafted tokens in all rows -> time of the step relative to one
            without a draft: ``{"1": {"8": 1.2, "24": 1.5}, "16": {"16": 1.9}}``.
        max_sessions: maximum number of known texts.
        max_mib: maximum size of texts and sessions in MiB.
        stores: draft sources of all requests: paths of corpora, and dicts of SharedStore's
            arguments and ``namespace``, which make a store to which all requests add their output.
            With ``path``, it is loaded from a file of ``SharedStore.save``.
        log_every: seconds between two log lines with counts; 0: none.
    """

    drafter: str = "auto"
    policy: Policy = "value"
    costs: str | Mapping[str, Mapping[str, float]] = "learned"
    max_sessions: int = 1024
    max_mib: int = 1024
    stores: Sequence[str | Mapping[str, Any]] = ()
    log_every: float = 0

    @classmethod
    def read(cls, given: object, where: str) -> EngineOptions:
        """Read and check a user's options, a dict called ``where`` in errors.

        Stores are opened by ``rows``, which knows the tokenizer.

        Raises:
            TypeError, ValueError: an option is unknown or wrong.
        """
        known = [each.name for each in fields(cls)]
        if not isinstance(given, Mapping):
            raise TypeError(f"{where} must be a dict of {', '.join(known)}, got {given!r}")
        unknown = sorted(str(name) for name in given if name not in known)
        if unknown:
            raise ValueError(f"{where}: no option {', '.join(unknown)}; known: {', '.join(known)}")
        options = cls(**given)
        try:
            options.check()
        except (TypeError, ValueError) as error:
            raise type(error)(f"{where}: {error}") from error
        return options

    def check(self) -> None:
        """Raise a TypeError or ValueError if a value is wrong."""
        if not isinstance(self.drafter, str):
            raise TypeError(f"drafter must be a string, got {self.drafter!r}")
        if build_drafter(self.drafter, policy=self.policy).assistants:
            raise ValueError(f"drafter must run no model in an engine, got {self.drafter!r}")
        self.batch_costs(1, "cpu", "float32")
        check_int("max_sessions", self.max_sessions, 1)
        check_int("max_mib", self.max_mib, 1)
        seconds: Any = self.log_every
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"log_every must be a number >= 0, got {seconds!r}")

    def batch_costs(self, k: int, device: str, dtype: str) -> EngineCosts | None:
        """The step costs that ``costs`` selects, or None; a ValueError if it is wrong."""
        if isinstance(self.costs, Mapping):
            for rows, points in self.costs.items():
                if not isinstance(points, Mapping):
                    raise TypeError(f"costs of {rows} rows must be a table, got {points!r}")
            return GivenEngineCosts(self.costs)
        if self.costs not in ("learned", "none"):
            raise ValueError(f"costs must be 'learned', 'none' or a table, got {self.costs!r}")
        return LearnedEngineCosts(k, device, dtype) if self.costs == "learned" else None

    def rows(
        self,
        k: int,
        *,
        vocab: int,
        max_len: int,
        device: str,
        dtype: str,
        tokenizer: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Rows:
        """Make the ``Rows`` with these options; see there.

        ``device`` is "cpu" or "gpu", and ``dtype`` the name of the model's dtype. The stores are
        checked against the vocabulary, and against ``tokenizer``, if it is given; a store with
        ``sync`` needs it.

        Raises:
            TypeError, ValueError: the drafter accepts no stores, or a store is invalid or was built
                with another tokenizer.
            OSError: a store cannot be read.
        """
        stores = open_stores(self.stores, tokenizer=tokenizer)
        drafter = build_drafter(self.drafter, policy=self.policy, stores=stores)
        for store in drafter.stores:
            if tokenizer is not None:
                store.check_tokenizer(tokenizer)
            store.check_vocabulary(vocab)
        return Rows(
            drafter,
            k,
            vocab,
            max_len,
            self.batch_costs(k, device, dtype),
            max_sessions=self.max_sessions,
            max_bytes=self.max_mib << 20,
            clock=clock,
        )
