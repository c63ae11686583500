"""llama-cpp-python: drafts for ``Llama(..., draft_model=NgramspecDraft(...))``.

llama-cpp-python calls its draft model with all committed tokens of one text at a time. It reports
neither accepted tokens nor the start of another text. Both are inferred from the tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.costs.engine import LearnedEngineCosts
from ngramspec.draft import Float32, Int32
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import RowState

try:
    from llama_cpp.llama_speculative import LlamaDraftModel
except ImportError as error:
    raise ImportError(
        "ngramspec.engines.llama_cpp needs llama-cpp-python: pip install llama-cpp-python"
    ) from error

MAX_ID = (1 << 31) - 2  # stores reserve the largest int32


class LlamaCosts(LearnedEngineCosts):
    """Costs of evaluations of one text, with a budget for drafts.

    On a CPU a wide evaluation is expensive, especially with quantized weights, and acceptance in
    one text predicts little about the next one: prose after copied code would lose up to a tenth of
    its first hundred tokens. So each text starts with a budget, and no draft may cost more than
    what is left of it. Gains of drafts are added to the budget, and losses are subtracted. This
    bounds the total loss of a text. The unit is the evaluation of one token. The constants were
    chosen on recorded texts with the costs of five types of weights.
    """

    # Assumed cost of a drafted token. Each timed drafted step halves its excess over the measured.
    TOKEN_COST = 0.7
    MARGIN = 0.1  # by which a draft's expected gain must exceed its cost
    INITIAL_BUDGET = 0.75  # enough for one token
    REGAINED_PER_STEP = 0.01  # added in each step, up to INITIAL_BUDGET
    MAX_BUDGET = 6.0

    def __init__(self, k: int) -> None:
        super().__init__(k, "cpu", "quantized")
        self._prohibitive = k + 1.0  # exceeds the gain of any draft
        self._assumed = (1.0 + self.TOKEN_COST * np.arange(k + 1)).astype(np.float32)
        self._believed = self._assumed
        self._tried = 0  # number of timed drafted steps
        self._budget = self.INITIAL_BUDGET

    def begin(self) -> None:
        """Start another text, or another turn of one."""
        self._budget = self.INITIAL_BUDGET

    def judged(self, drafted: int, accepted: int) -> None:
        """Record how many draft tokens were accepted."""
        if drafted:
            gain = accepted + 1.0 - float(self._believed[drafted])
            self._budget = min(max(self._budget + gain, 0.0), self.MAX_BUDGET)
        if self._budget < self.INITIAL_BUDGET:
            self._budget = min(self._budget + self.REGAINED_PER_STEP, self.INITIAL_BUDGET)

    def curve(self, rows: int) -> Float32 | None:
        known = super().curve(rows)
        if known is None:
            return None
        doubt = np.float32(0.5**self._tried)
        self._believed = known + doubt * np.maximum(self._assumed - known, 0)
        curve: Float32 = self._believed * np.float32(1.0 + self.MARGIN)
        curve[self._believed - 1.0 > self._budget] += self._prohibitive
        curve[0] = 1.0
        return curve

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        super().record_time(rows, drafted, seconds)
        self._tried += drafted > 0


class NgramspecDraft(LlamaDraftModel):  # type: ignore[misc]
    """A draft model for llama-cpp-python that needs no model.

    ``Llama`` needs ``logits_all=True``, or n_batch >= n_ctx. With any draft model it keeps the
    logits of every position, but otherwise in a buffer of only n_batch positions. After these
    ``Llama.eval`` fails ("could not broadcast"), with any draft.

    Costs of wider evaluations are learned from the times between calls: see ``LlamaCosts``.

    Args:
        num_pred_tokens: maximum number of drafted tokens, >= 1.
        n_ctx: context length of the ``Llama``. Drafts leave room for the token after them, so the
            context is not full earlier than with plain decoding.
        vocab: size of the vocabulary, ``Llama.n_vocab()``. None: any id of the text may be drafted.
        options: fields of ``EngineOptions``.
        clock: returns seconds.

    Raises:
        TypeError, ValueError: an argument or option is wrong.

    Example::

        llm = Llama("model.gguf", n_ctx=2048, logits_all=True,
                    draft_model=NgramspecDraft(10, n_ctx=2048))
    """

    def __init__(
        self,
        num_pred_tokens: int = 10,
        *,
        n_ctx: int = MAX_ID,
        vocab: int | None = None,
        options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        given = {"max_sessions": 4} | dict({} if options is None else options)
        known = EngineOptions.read(given, "options")
        self.rows = known.rows(
            num_pred_tokens,
            vocab=MAX_ID if vocab is None else vocab,
            max_len=n_ctx,
            device="cpu",
            dtype="float32",
            clock=clock,
        )
        if known.costs == "learned":
            self.rows.costs = LlamaCosts(num_pred_tokens)
        self._last = np.empty(0, np.int32)  # the text of the last call
        self._drafted = 0  # number of tokens drafted after it

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """Draft the tokens after all committed ones, int32 (n,); empty for no draft."""
        tokens = np.array(input_ids, np.int32)  # a copy, because llama.cpp reuses its buffer
        length, new = len(tokens), self._generated(tokens)
        if isinstance(self.rows.costs, LlamaCosts):
            if new:
                self.rows.costs.judged(self._drafted, new - 1)
            else:
                self.rows.costs.begin()
        last = tokens[length - new :] if new else tokens[-1:]
        draft = self.rows.step([RowState(None, tokens, length, last.tolist())])[0]
        self._last, self._drafted = tokens, len(draft.tokens)
        return draft.tokens.astype(np.intc)

    def _generated(self, tokens: Int32) -> int:
        """Number of tokens, int32 (n,), generated since the last call; 0: another text."""
        known = len(self._last)
        new = len(tokens) - known
        if 0 < new <= self._drafted + 1 and np.array_equal(tokens[:known], self._last):
            return new
        return 0
