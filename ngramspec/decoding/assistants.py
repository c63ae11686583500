"""The draft models of a call: loaded, compared with the target, and run for sessions."""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ngramspec.costs.steps import StepCosts, averaged
from ngramspec.draft import Float32, Int32
from ngramspec.drafters.base import Drafter, DraftModel
from ngramspec.drafters.headed import MtpDrafter
from ngramspec.drafters.model import ModelDrafter, same_vocabulary
from ngramspec.hf_model.assistants import (
    AssistantModel,
    MtpHead,
    check_assistant,
    check_rollback,
    folder_model,
    mtp_layers,
    parameters,
    tokenizer_file,
)
from ngramspec.hf_model.target import Target
from ngramspec.verification.evidence import leading

MAX_TIMED_TOKENS = 16  # longer reads catch up with the text and are not timed


class DraftingModel(DraftModel):
    """Runs a transformers model, or MTP layers.

    Ids outside the target's vocabulary of ``vocab`` tokens are never drafted. The cost of a forward
    is relative to a plain step of the target, whose duration is in ``steps``. At first it is
    ``assumed``, and then measured.
    """

    def __init__(
        self, model: AssistantModel | MtpHead, vocab: int, steps: StepCosts, assumed: float
    ) -> None:
        self._model, self._vocab, self._steps, self._assumed = model, vocab, steps, assumed
        self._seconds: float | None = None  # of a forward of one model or layer
        self._forwards = 0
        self._layers = model if isinstance(model, MtpHead) else None
        self.room = model.room if isinstance(model, AssistantModel) else None
        own = model.vocab if isinstance(model, AssistantModel) else None
        self.vocab = None if own is None or own >= vocab else own

    @property
    def ahead(self) -> int | None:
        return None if self._layers is None else self._layers.ahead

    @property
    def ready(self) -> bool:
        return self._layers is None or self._layers.ready

    def cost(self, last: int) -> float:
        plain = self._steps.plain_seconds
        known = self._assumed if self._seconds is None or not plain else self._seconds / plain
        return known * self._runs(last)

    def reading_cost(self, tokens: int) -> float:
        if tokens <= MAX_TIMED_TOKENS:
            return 0.0
        steps = self._steps
        if steps.position_seconds is None or not steps.plain_seconds:
            return math.inf
        return self._assumed * tokens * steps.position_seconds / steps.plain_seconds

    def record(self, seconds: float) -> None:
        """Record a forward; the first one, in which caches are cold, is ignored."""
        self._forwards += 1
        if self._forwards > 1:
            self._seconds = averaged(self._seconds, seconds)

    def _runs(self, last: int) -> int:
        """How many models or MTP layers a forward runs: one layer for each distribution."""
        return 1 if self._layers is None else last

    def commit(self, length: int) -> None:
        if self._layers is not None:
            self._layers.commit(length)

    def forward(self, tokens: Int32, last: int, top_k: int) -> tuple[Int32, Float32]:
        began = perf_counter()
        logits = self._model.forward(torch.from_numpy(tokens.astype(np.int64)), last)
        logits = logits[:, : self._vocab]
        ids, log_probs = leading(logits.float(), min(top_k, logits.shape[1]))
        both = torch.cat((ids.to(torch.int32), log_probs.view(torch.int32)), dim=1)
        packed = both.to("cpu").numpy()  # one transfer
        if len(tokens) <= MAX_TIMED_TOKENS:
            self.record((perf_counter() - began) / self._runs(last))
        count = ids.shape[1]
        return packed[:, :count].copy(), packed[:, count:].copy().view(np.float32)

    def truncate(self, length: int) -> None:
        self._model.truncate(length)


def check_models(target: Any, drafter: Drafter) -> None:
    """Load the models that a drafter needs, and compare them with the target.

    An UnsupportedError says that a model's token ids differ from the target's.
    """
    for each in drafter.assistants:
        _model_of(each, target)


def open_model(
    target: Target, drafter: ModelDrafter, vocab: int, row: int, costs: StepCosts
) -> DraftingModel:
    """The model of a session in a row of the batch, see ``DraftSession.begin_models``."""
    model = _model_of(drafter, target.model)
    share = parameters(model) / max(parameters(target.model), 1)
    if isinstance(drafter, MtpDrafter):
        share /= len(model.layers)
        return DraftingModel(MtpHead(model, target.states, row), vocab, costs, share)
    return DraftingModel(AssistantModel(model), vocab, costs, share)


def _model_of(drafter: ModelDrafter, target: Any) -> Any:
    """A drafter's model, loaded once and compared with the target."""
    if isinstance(drafter, MtpDrafter):
        return mtp_layers(target)
    model = drafter.assistant
    if isinstance(model, str):
        model = drafter.loaded[target] = folder_model(model, target)
    files = (tokenizer_file(each) for each in (model, target))
    check_assistant(model, target, drafter.same_tokenizer or same_vocabulary(*files))
    check_rollback(model)
    return model
