"""The draft models of a call: loaded, compared with the target, and run for sessions."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Float32, Int32
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.model import ModelDrafter, fingerprint_of
from ngramspec.hf_model.assistants.assistant import (
    AssistantModel,
    check_assistant,
    read_folder,
    tokenizer_of,
)
from ngramspec.verification.evidence import leading


class DraftingModel:
    """A DraftModel (see drafters/base) that runs a transformers model.

    Attributes:
        room: maximum tokens that it can read; None: no maximum.

    Args:
        model: a causal language model.
        vocab: size of the target's vocabulary; larger ids are never drafted.
    """

    def __init__(self, model: Any, vocab: int) -> None:
        self._model = AssistantModel(model)
        self._vocab = vocab
        self.room = self._model.room

    @property
    def length(self) -> int:
        """Tokens read."""
        return self._model.length

    def forward(self, tokens: Int32, last: int, most: int) -> tuple[Int32, Float32]:
        """Read int32 (n,) tokens, and return the most probable next tokens in one transfer.

        They follow each of the ``last`` final positions: (ids int32, log_probs float32), each
        (last, min(most, vocab)), the most probable first.
        """
        logits = self._model.forward(torch.from_numpy(tokens.astype(np.int64)), last)
        logits = logits[:, : self._vocab]
        ids, log_probs = leading(logits.float(), min(most, logits.shape[1]))
        both = torch.cat((ids.to(torch.int32), log_probs.view(torch.int32)), dim=1)
        packed = both.to("cpu").numpy()
        count = ids.shape[1]
        return packed[:, :count].copy(), packed[:, count:].copy().view(np.float32)

    def truncate(self, length: int) -> None:
        """Keep only the first ``length`` tokens read."""
        self._model.truncate(length)


class Assistants:
    """The drafting models of one call.

    Args:
        target: the model that verifies.
        drafter: the call's drafter; its models are loaded and compared with the target here.

    Raises:
        UnsupportedError: a model's token ids differ from the target's.
        OSError: a model's folder cannot be read.
    """

    def __init__(self, target: Any, drafter: Drafter) -> None:
        self._target = target
        for each in drafter.assistants:
            self._model_of(each)

    def loader(self, vocab: int) -> Callable[[Any], DraftingModel]:
        """The function that sessions open their models with, see ``DraftSession.begin_models``."""
        return lambda drafter: DraftingModel(self._model_of(drafter), vocab)

    def _model_of(self, drafter: ModelDrafter) -> Any:
        """A drafter's model, loaded once and compared with each target once."""
        model = drafter.assistant
        if isinstance(model, str):
            model = drafter.loaded = drafter.loaded or read_folder(model, self._target)
        if drafter.checked_for is None or drafter.checked_for() is not self._target:
            own, targets = (fingerprint_of(tokenizer_of(each)) for each in (model, self._target))
            check_assistant(model, self._target, own, targets)
            drafter.checked_for = weakref.ref(self._target)
        return model
