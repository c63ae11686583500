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

from ngramspec.integrations.row_options import EngineOptions
from ngramspec.integrations.rows import Row

try:
    from llama_cpp.llama_speculative import LlamaDraftModel
except ImportError as error:
    raise ImportError(
        "ngramspec.integrations.llama_cpp needs llama-cpp-python: pip install llama-cpp-python"
    ) from error

MOST_IDS = (1 << 31) - 1


class NgramspecDraft(LlamaDraftModel):  # type: ignore[misc]
    """A draft model of llama-cpp-python without a model.

    ``Llama`` needs ``logits_all=True``, or n_batch >= n_ctx: with any draft model it keeps every
    position's logits, in a buffer that is else only n_batch positions long. Behind them
    ``Llama.eval`` fails ("could not broadcast"), whatever is drafted.

    What a wider evaluation costs is learned from the times between the calls: there it is dear,
    since every position's logits are copied.

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
        self.rows = EngineOptions.read(given, "options").rows(
            num_pred_tokens,
            vocab=MOST_IDS if vocab is None else vocab,
            max_len=n_ctx,
            device="cpu",
            dtype="float32",
            clock=clock,
        )
        self._length = 0

    def __call__(self, input_ids: NDArray[np.intc], /, **kwargs: Any) -> NDArray[np.intc]:
        """What may follow all committed tokens, int32 (n,); an empty array for no draft."""
        length = len(input_ids)
        new = length - self._length if 0 < self._length < length else 1
        self._length = length
        tokens = np.asarray(input_ids, np.int32)
        drafts = self.rows.step(
            [Row(None, tokens, length, tokens[max(length - new, 0) :].tolist())]
        )
        return drafts[0].tokens.astype(np.intc)
