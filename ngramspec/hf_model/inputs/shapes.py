"""The shapes of the forwards after the prefill, and whether they are compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.abilities import Ability, obstacle
from ngramspec.hf_model.cache.kv_cache import KVCache
from ngramspec.hf_model.call import Known
from ngramspec.hf_model.compat import hf_private
from ngramspec.hf_model.inputs.padding import make_room

if TYPE_CHECKING:
    from ngramspec.hf_model.compiled import Graphs


class ForwardShapes:
    """The widths of a generation's forwards, and the number of keys that they attend to.

    The constructor also resizes a static cache made by ``generate`` to what the widths need.

    Attributes:
        widths: allowed widths of the forwards, ascending; empty: any width.
        keys: number of positions that forwards over a dynamic cache attend to, including masked
            ones; None: those that the cache holds, or the cache is static.
        run: the model, or its compiled forward.

    Args:
        known, cache: of the call, before the prefill.
        width, compiled, gamma_max: as in Target.
    """

    def __init__(
        self,
        known: Known,
        cache: KVCache,
        *,
        width: int | None,
        compiled: bool | None,
        gamma_max: int,
    ) -> None:
        model, config = known.model, known.config
        self.widths: tuple[int, ...] = () if width is None else (width,)
        reason = None if width is None else obstacle(Ability.FIXED_WIDTH, known)
        if reason is not None:
            raise UnsupportedError(f"width={width} is not supported with {reason}")
        self._graphs: Graphs | None = None
        if should_compile(known, compiled):
            from ngramspec.hf_model.compiled import Graphs, bucket_sizes  # few calls compile

            if width is None:
                self.widths = bucket_sizes(gamma_max + 1)
            self._graphs = Graphs(model, config, len(self.widths))
        self.run: Callable[..., Any] = model if self._graphs is None else self._graphs
        self.keys: int | None = None
        if self.widths:
            widest, fixed = self.widths[-1], width is not None
            new = int(config.max_length) - known.call.prompt
            # The last forward begins with the second-to-last token.
            needed = known.call.end + new - 2 + widest
            self.keys = make_room(
                cache, config, needed, widest, fixed=fixed, compiled=self._graphs is not None
            )

    @property
    def compiling(self) -> bool:
        """Whether the last forward spent its time compiling."""
        return self._graphs is not None and self._graphs.compiled


def should_compile(known: Known, compiled: bool | None) -> bool:
    """Whether a call's forwards are compiled; an UnsupportedError if ``compiled`` cannot be."""
    if compiled is False or known.config.disable_compile:
        return False
    reason = obstacle(Ability.COMPILED, known)
    if compiled and reason is not None:
        raise UnsupportedError(f"compiled=True is not supported with {reason}")
    if compiled or reason is not None:
        return reason is None
    return hf_private.compiles_by_default(known.model, known.kwargs, known.config)
