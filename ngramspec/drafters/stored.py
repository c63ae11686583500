"""The stores of one call: which drafter a row uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ngramspec.drafters.base import Drafter
from ngramspec.stores.choice import open_stores


class CallDrafter:
    """The drafter of one call: the current one, with the stores that the call names.

    Stores with token ids outside of the target's vocabulary are left out.

    Args:
        current: returns the Speculator's drafter.
        stores: in place of that drafter's; None: those.
        extra: beside them; None: none.
        log_once: logs a warning once.

    Raises:
        TypeError: a store is none.
        OSError: a store's file cannot be read.
        ValueError: a store's file is broken, or the drafter takes no stores.
    """

    def __init__(
        self,
        current: Callable[[], Drafter],
        stores: Any,
        extra: Any,
        log_once: Callable[[str], None],
    ) -> None:
        self._current = current
        self._stores = None if stores is None else open_stores(stores)
        self._extra = open_stores(extra, "extra_stores")
        self._log_once = log_once
        self._made: dict[tuple[int, int], tuple[Drafter, Drafter]] = {}
        self._with_stores(current())

    def __call__(self, vocab: int) -> Drafter:
        """The drafter to use now, for a target with ``vocab`` token ids."""
        current = self._current()
        known = self._made.get((id(current), vocab))
        if known is None or known[0] is not current:
            known = (current, self._fitting(self._with_stores(current), vocab))
            self._made[id(current), vocab] = known
        return known[1]

    def _with_stores(self, drafter: Drafter) -> Drafter:
        if self._stores is None and not self._extra:
            return drafter
        stores = drafter.stores if self._stores is None else self._stores
        return drafter.with_stores((*stores, *self._extra))

    def _fitting(self, drafter: Drafter, vocab: int) -> Drafter:
        fitting = []
        for store in drafter.stores:
            try:
                store.check_vocabulary(vocab)
                fitting.append(store)
            except ValueError as error:
                self._log_once(f"drafting without a store: {error}")
        return drafter if len(fitting) == len(drafter.stores) else drafter.with_stores(fitting)
