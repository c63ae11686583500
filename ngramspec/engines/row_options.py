"""The options that all engine integrations take, from a dict of JSON values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from ngramspec.costs.engine_rows import EngineCosts, GivenEngineCosts, LearnedEngineCosts
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.registry import POLICIES, build_drafter
from ngramspec.engines.row_stores import named_stores
from ngramspec.engines.rows import Rows
from ngramspec.errors import check_int


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How an engine's rows are drafted for.

    Attributes:
        drafter: as ``build_drafter`` takes it.
        policy: likewise.
        costs: "learned", from the engine's own steps; "none": all drafts have up to k tokens; or
            a table, number of rows -> drafted tokens in all rows -> time of the step in steps
            without a draft: ``{"1": {"8": 1.2, "24": 1.5}, "16": {"16": 1.9}}``.
        max_sessions: most texts that are known at a time.
        max_mib: most MiB of texts and sessions.
        stores: what all requests draft from: paths of corpora, and dicts that name shared stores,
            to which all requests add what they say: see ``named_stores``.
        log_every: seconds between two log lines with counts; 0: none.
    """

    drafter: str = "auto"
    policy: str = "value"
    costs: str | Mapping[str, Mapping[str, float]] = "learned"
    max_sessions: int = 1024
    max_mib: int = 1024
    stores: Sequence[str | Mapping[str, Any]] = ()
    log_every: float = 0

    @classmethod
    def read(cls, given: object, where: str) -> EngineOptions:
        """Check what a user gave.

        Args:
            given: a dict.
            where: names it in errors.

        Raises:
            TypeError, ValueError: an option is unknown or wrong; the known ones are named.
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
        """Raise what is wrong with the values."""
        if not isinstance(self.drafter, str):
            raise TypeError(f"drafter must be a string, got {self.drafter!r}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy!r}")
        self.build_drafter()
        self.batch_costs(1, "cpu", "float32")
        check_int("max_sessions", self.max_sessions, 1)
        check_int("max_mib", self.max_mib, 1)
        seconds: Any = self.log_every
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0:
            raise ValueError(f"log_every must be a number >= 0, got {seconds!r}")

    def build_drafter(self, tokenizer: Any = None, vocab: int | None = None) -> Drafter:
        """The drafter, with its stores.

        Args:
            tokenizer: of the model; the stores must have been built with it. None: not known.
            vocab: size of the vocabulary; None: not known.

        Raises:
            TypeError, ValueError: the drafter takes no stores, or a store is none, or one of
                another tokenizer.
            OSError: a store cannot be read.
        """
        drafter = build_drafter(self.drafter, policy=self.policy, stores=named_stores(self.stores))
        for store in drafter.stores:
            if tokenizer is not None:
                store.check_tokenizer(tokenizer)
            if vocab is not None:
                store.check_vocabulary(vocab)
        return drafter

    def batch_costs(self, k: int, device: str, dtype: str) -> EngineCosts | None:
        """The costs to go by."""
        if isinstance(self.costs, Mapping):
            table = self.costs.items()
            return GivenEngineCosts(
                {int(rows): {int(n): cost for n, cost in row.items()} for rows, row in table}
            )
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
        tree: bool = False,
        tokenizer: Any = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> Rows:
        """The drafts for an engine's rows by these options.

        Args:
            k: most tokens drafted for a row.
            vocab: size of the vocabulary.
            max_len: most tokens of a text.
            device: "cpu" or "gpu".
            dtype: of the model, by name.
            tree: whether drafts may be trees: always of k nodes then, whatever that costs.
            tokenizer: of the model, for the stores; None: not at hand.
            clock: seconds.
        """
        return Rows(
            self.build_drafter(tokenizer, vocab),
            k,
            vocab,
            max_len,
            None if tree else self.batch_costs(k, device, dtype),
            tree=tree,
            max_sessions=self.max_sessions,
            max_bytes=self.max_mib << 20,
            clock=clock,
        )
