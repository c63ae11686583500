"""The draft models of a call: loaded, compared with the target, and run for sessions."""

from __future__ import annotations

import weakref
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ngramspec.decoding.pace import HeadPace, Pace
from ngramspec.draft import Float32, Int32
from ngramspec.drafters.base import Drafter
from ngramspec.drafters.heads import EarlyExitDrafter, MtpDrafter
from ngramspec.drafters.model import ModelDrafter, fingerprint_of
from ngramspec.hf_model.assistants.assistant import (
    AssistantModel,
    check_assistant,
    checked_cache,
    parameters,
    read_folder,
    tokenizer_of,
)
from ngramspec.hf_model.assistants.early_exit import early_exit
from ngramspec.hf_model.assistants.mtp import MtpHead, mtp_layers
from ngramspec.hf_model.assistants.states import StateChannel
from ngramspec.verification.evidence import leading

MOST_TIMED_TOKENS = 16  # longer reads catch up with the text and are not timed


class DraftingModel:
    """A DraftModel (see drafters/base) that runs a transformers model, or MTP layers.

    Ids outside the target's vocabulary of ``vocab`` tokens are never drafted.
    """

    def __init__(self, model: AssistantModel | MtpHead, vocab: int, pace: HeadPace) -> None:
        self._model, self._vocab, self._pace = model, vocab, pace
        self._layers = model if isinstance(model, MtpHead) else None
        self.room = model.room if isinstance(model, AssistantModel) else None

    @property
    def ahead(self) -> int | None:
        """See DraftModel."""
        return None if self._layers is None else self._layers.ahead

    @property
    def ready(self) -> bool:
        """See DraftModel."""
        return self._layers is None or self._layers.ready

    def cost(self, last: int) -> float:
        """See DraftModel: an MTP layer runs for each distribution."""
        return self._pace.cost * self._runs(last)

    def _runs(self, last: int) -> int:
        """How many layers or models a forward with ``last`` distributions runs."""
        return 1 if self._layers is None else last

    def commit(self, length: int) -> None:
        """See DraftModel."""
        if self._layers is not None:
            self._layers.commit(length)

    @property
    def length(self) -> int:
        """Tokens read."""
        return self._model.length

    def forward(self, tokens: Int32, last: int, most: int) -> tuple[Int32, Float32]:
        """Read int32 (n,) tokens, and return the most probable next tokens in one transfer.

        They follow each of the ``last`` final positions: (ids int32, log_probs float32), each
        (last, min(most, vocab)), the most probable first.
        """
        began = perf_counter()
        logits = self._model.forward(torch.from_numpy(tokens.astype(np.int64)), last)
        logits = logits[:, : self._vocab]
        ids, log_probs = leading(logits.float(), min(most, logits.shape[1]))
        both = torch.cat((ids.to(torch.int32), log_probs.view(torch.int32)), dim=1)
        packed = both.to("cpu").numpy()
        if len(tokens) <= MOST_TIMED_TOKENS:
            self._pace.record((perf_counter() - began) / self._runs(last))
        count = ids.shape[1]
        return packed[:, :count].copy(), packed[:, count:].copy().view(np.float32)

    def truncate(self, length: int) -> None:
        """Keep only the first ``length`` tokens read."""
        self._model.truncate(length)


class Assistants:
    """The drafting models of one call, loaded and compared with the target here.

    ``channel`` has the target's hidden states, if a head reads them. An UnsupportedError says that
    a model's token ids differ from the target's.
    """

    def __init__(self, target: Any, drafter: Drafter, channel: StateChannel | None = None) -> None:
        self._target, self._channel = target, channel
        for each in drafter.assistants:
            self._model_of(each)

    def open(self, drafter: ModelDrafter, vocab: int, row: int, pace: Pace) -> DraftingModel:
        """The model of a session in a row of the batch, see ``DraftSession.begin_models``."""
        model = self._model_of(drafter)
        share = parameters(model) / max(parameters(self._target), 1)
        if isinstance(drafter, MtpDrafter):
            share /= len(model.layers)
            return DraftingModel(MtpHead(model, self._channel, row), vocab, HeadPace(pace, share))
        return DraftingModel(AssistantModel(model), vocab, HeadPace(pace, share))

    def _model_of(self, drafter: ModelDrafter) -> Any:
        """A drafter's model, loaded once and compared with each target once."""
        if isinstance(drafter, MtpDrafter):
            return mtp_layers(self._target)
        if isinstance(drafter, EarlyExitDrafter):
            return checked_cache(early_exit(self._target, drafter.layers))
        model = drafter.assistant
        if isinstance(model, str):
            model = drafter.loaded = drafter.loaded or read_folder(model, self._target)
        if drafter.checked_for is None or drafter.checked_for() is not self._target:
            own, targets = (fingerprint_of(tokenizer_of(each)) for each in (model, self._target))
            check_assistant(model, self._target, own, targets)
            checked_cache(model)
            drafter.checked_for = weakref.ref(self._target)
        return model
