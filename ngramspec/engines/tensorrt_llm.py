"""TensorRT-LLM's PyTorch back end: a drafter for ``UserProvidedDecodingConfig``.

    from tensorrt_llm.llmapi import LLM, UserProvidedDecodingConfig
    drafter = make_drafter(max_draft_len=16, vocab=VOCAB, max_len=MAX_SEQ_LEN)
    llm = LLM(MODEL, speculative_config=UserProvidedDecodingConfig(
        max_draft_len=16, drafter=drafter))

It follows TensorRT-LLM's documented interface and the source of its n-gram drafter. It is tested
only with stand-ins and has not been run with TensorRT-LLM. It supports one rank only, because
several ranks would each draft separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ngramspec.engines.engine_texts import EngineTexts
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import Rows


def make_drafter(
    max_draft_len: int, *, vocab: int, max_len: int, options: Mapping[str, Any] | None = None
) -> Any:
    """Make a ``tensorrt_llm._torch.speculative.drafter.Drafter``.

    Args:
        max_draft_len: maximum number of tokens drafted for a request, as in the configuration.
        vocab: size of the vocabulary.
        max_len: maximum number of tokens of a text.
        options: fields of ``EngineOptions``.

    Raises:
        ImportError: TensorRT-LLM is not installed.
        TypeError, ValueError: an argument or option is wrong.
    """
    try:
        from tensorrt_llm._torch.speculative.drafter import Drafter
    except ImportError as error:
        raise ImportError(
            "ngramspec.engines.tensorrt_llm needs TensorRT-LLM: pip install tensorrt-llm"
        ) from error
    rows = EngineOptions.read({} if options is None else options, "options").rows(
        max_draft_len, vocab=vocab, max_len=max_len, device="gpu", dtype="bfloat16"
    )
    requests = Requests(rows)

    class NgramspecDrafter(Drafter):  # type: ignore[misc]
        """Sets ``py_draft_tokens`` of every generating request."""

        def __init__(self) -> None:
            super().__init__(max_draft_len=max_draft_len, max_total_draft_tokens=max_draft_len)

        def prepare_draft_tokens(
            self, scheduled_requests: Any, resource_manager: Any = None
        ) -> None:
            requests.draft(scheduled_requests.generation_requests)

    return NgramspecDrafter()


class Requests:
    """Drafts for requests that provide their ids and texts."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self._texts = EngineTexts()
        self._seen: set[int] = set()

    def draft(self, requests: Any) -> None:
        """Set ``py_draft_tokens``, a list of ids, of each request. Never raises an Exception."""
        for request in requests:
            request.py_draft_tokens = []
        try:
            keys = [int(request.request_id) for request in requests]
            for key in self._seen - set(keys):
                self._texts.drop(key)
                self.rows.finish(key)
            self._seen = set(keys)
            rows = []
            for key, request in zip(keys, requests, strict=True):
                tokens = request.get_tokens(0)
                new = len(tokens) - self._texts.known(key)
                tail = tokens[-new:] if new > 0 else tokens
                rows.append(self._texts.row(key, tail, len(tokens)))
            for request, row, draft in zip(requests, rows, self.rows.step(rows), strict=True):
                most = request.py_orig_prompt_len + request.py_max_new_tokens - 1 - row.length
                request.py_draft_tokens = draft.tokens[: max(most, 0)].tolist()
        except Exception as error:
            self.rows.fault(error)
