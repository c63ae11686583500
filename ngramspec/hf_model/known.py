"""Properties of a model and a call that decide which abilities it has (``abilities``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ngramspec.hf_model.call import CallTraits
from ngramspec.hf_model.traits import Traits

# Arguments of the prefill that a prompt of plain text has.
PLAIN_PREFILL = (
    "past_key_values",
    "use_cache",
    "logits_to_keep",
    "attention_mask",
    "position_ids",
)


@dataclass(frozen=True, slots=True)
class Known:
    """Properties of a model and of one call of ``generate``.

    Attributes:
        traits: of the model.
        call: traits of the call.
        model: the transformers model that ``traits`` describes.
        config: the prepared GenerationConfig.
        kwargs: of the next forward.
        by_row: whether each row of a batch may have a separate tree, as rows that accept different
            numbers of tokens and beams may.
    """

    traits: Traits
    call: CallTraits
    model: Any
    config: Any
    kwargs: dict[str, Any]
    by_row: bool = False

    @property
    def plain(self) -> bool:
        """Whether the arguments describe only text.

        Any other argument may change how a prompt is read. Token types, for example, may make
        attention bidirectional.
        """
        return all(
            name in PLAIN_PREFILL or value is None or value is False
            for name, value in self.kwargs.items()
        )

    @property
    def masks_positions(self) -> bool:
        """Whether the attention mask hides a position. It costs one host sync on a device."""
        mask: torch.Tensor | None = self.kwargs.get("attention_mask")
        return mask is not None and not bool((mask != 0).all())

    @property
    def slides(self) -> bool:
        """Whether the text may become longer than a window or chunk of a layer.

        Otherwise all layers have full attention. The length is that of the text with all new
        tokens, and drafts do not go beyond it.
        """
        windows = self.traits.windows
        if windows is None:
            return False
        end = self.call.end + int(self.config.max_length) - self.call.prompt
        return not windows.known or end > windows.shortest

    @property
    def reads_text(self) -> bool:
        """Whether the model's own input preparation may read and count all committed tokens."""
        return self.traits.reads_text and self.traits.stock is None
