"""llama-cpp-python: drafts for ``Llama(..., draft_model=NgramspecDraft(...))``.

llama-cpp-python calls its draft model with all committed tokens, for one text at a time, and tells
neither what was accepted nor that another text begins. Both are seen from the tokens.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.costs.engine_rows import LearnedEngineCosts
from ngramspec.draft import Float32, Int32
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import Row

try:
    from llama_cpp.llama_speculative import LlamaDraftModel
except ImportError as error:
    raise ImportError(
        "ngramspec.engines.llama_cpp needs llama-cpp-python: pip install llama-cpp-python"
    ) from error

MOST_IDS = (1 << 31) - 1


class LlamaCosts(LearnedEngineCosts):
    """What evaluations of one text cost, and what a draft may cost at most.

    On a CPU a wide evaluation is dear, with quantized weights above all, and what was accepted in
    one text says little of the next one: prose behind copied code would lose up to a tenth of its
    first hundred tokens. So each text begins with a stake, and a draft may cost no more than what
    is left of it: drafts that were accepted raise it, others take from it. What a text can lose is
    bounded: the stake, and what it regains. All is in evaluations of one token. The values were
    chosen on recorded texts with the costs of five types of weights.

    Args:
        k: most drafted tokens.
    """

    SLOPE = 0.7  # what a drafted token costs until that is measured: half of the difference is
    # believed for each drafted step that was timed
    EXTRA = 0.1  # by which a draft must be worth more than it costs
    STAKE = 0.75  # of a text that begins: enough for one token
    REGAINED = 0.01  # in each step, while there is less
    MOST = 6.0  # of what was won that is kept

    def __init__(self, k: int) -> None:
        super().__init__(k, "cpu", "quantized")
        self._dear = k + 1.0  # more than all tokens of a draft are worth
        self._assumed = (1.0 + self.SLOPE * np.arange(k + 1)).astype(np.float32)
        self._believed = self._assumed
        self._tried = 0  # drafted steps that were timed
        self._stake = self.STAKE

    def begin(self) -> None:
        """Another text, or another turn of one, begins."""
        self._stake = self.STAKE

    def judged(self, drafted: int, accepted: int) -> None:
        """Of a draft so many tokens were accepted."""
        if drafted:
            gain = accepted + 1.0 - float(self._believed[drafted])
            self._stake = min(max(self._stake + gain, 0.0), self.MOST)
        if self._stake < self.STAKE:
            self._stake = min(self._stake + self.REGAINED, self.STAKE)

    def curve(self, rows: int) -> Float32 | None:
        known = super().curve(rows)
        if known is None:
            return None
        doubt = np.float32(0.5**self._tried)
        self._believed = known + doubt * np.maximum(self._assumed - known, 0)
        curve: Float32 = self._believed * np.float32(1.0 + self.EXTRA)
        curve[self._believed - 1.0 > self._stake] += self._dear
        curve[0] = 1.0
        return curve

    def record_time(self, rows: int, drafted: int, seconds: float) -> None:
        super().record_time(rows, drafted, seconds)
        self._tried += drafted > 0


class NgramspecDraft(LlamaDraftModel):  # type: ignore[misc]
    """A draft model of llama-cpp-python without a model.

    ``Llama`` needs ``logits_all=True``, or n_batch >= n_ctx: with any draft model it keeps every
    position's logits, in a buffer that is else only n_batch positions long. Behind them
    ``Llama.eval`` fails ("could not broadcast"), whatever is drafted.

    What a wider evaluation costs is learned from the times between the calls: see ``LlamaCosts``.

    Args:
        num_pred_tokens: most tokens drafted, >= 1.
        n_ctx: the context's length, as ``Llama`` has it. Drafts leave room for the token behind
            them, so that the context is never full before plain decoding fills it.
        vocab: size of the vocabulary, ``Llama.n_vocab()``; None: any id may be drafted that was
            seen, which are those of the text.
        options: as ``EngineOptions`` names them.
        clock: seconds.

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
        n_ctx: int = MOST_IDS,
        vocab: int | None = None,
        options: Mapping[str, Any] | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        given = {"max_sessions": 4} | dict({} if options is None else options)
        known = EngineOptions.read(given, "options")
        self.rows = known.rows(
            num_pred_tokens,
            vocab=MOST_IDS if vocab is None else vocab,
            max_len=n_ctx,
            device="cpu",
            dtype="float32",
            clock=clock,
        )
        if known.costs == "learned":
            self.rows.costs = LlamaCosts(num_pred_tokens)
        self._last = np.empty(0, np.int32)  # the text of the last call,
        self._drafted = 0  # and what was drafted behind it

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """What may follow all committed tokens, int32 (n,); an empty array for no draft."""
        tokens = np.array(input_ids, np.int32)  # a copy: llama.cpp writes over its own
        length, new = len(tokens), self._generated(tokens)
        if isinstance(self.rows.costs, LlamaCosts):
            if new:
                self.rows.costs.judged(self._drafted, new - 1)
            else:
                self.rows.costs.begin()
        last = tokens[length - new :] if new else tokens[-1:]
        draft = self.rows.step([Row(None, tokens, length, last.tolist())])[0]
        self._last, self._drafted = tokens, len(draft.tokens)
        return draft.tokens.astype(np.intc)

    def _generated(self, tokens: Int32) -> int:
        """How many of the last of these tokens, int32 (n,), the last call's draft led to; 0: none.

        Then it is another text, or has another prompt in it: it does not begin with that of the
        last call, or goes on by more than its draft and another token.
        """
        known = len(self._last)
        new = len(tokens) - known
        if 0 < new <= self._drafted + 1 and np.array_equal(tokens[:known], self._last):
            return new
        return 0
