"""vLLM: drafts by ngramspec, as the proposer of its speculative method ``custom_class``.

    vllm serve MODEL --speculative-config '{"method": "custom_class",
        "model": "ngramspec.engines.vllm.NgramspecProposer", "num_speculative_tokens": 24}'
        --additional-config '{"ngramspec": {"drafter": "auto"}}'

vLLM imports this module in every worker. The module imports only vLLM's function for the tensor
parallel rank, at run time.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ngramspec.draft import Int32
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import Rows, RowState

logger = logging.getLogger("vllm.ngramspec")  # vLLM shows only messages of its own loggers


class NgramspecProposer:
    """Proposer that vLLM's runner calls for drafts after every step (``create_custom_proposer``).

    vLLM provides no request ids, so rows are recognized by their tokens. A tensor parallel group
    uses only the first rank's drafts, so only that rank drafts.

    Args:
        vllm_config: vLLM's configuration. It provides the number of speculative tokens, the model's
            vocabulary, length and dtype, the device, and ``additional_config["ngramspec"]`` (see
            ``EngineOptions``).

    Raises:
        ValueError, TypeError: an option is unknown or wrong.
    """

    def __init__(self, vllm_config: Any) -> None:
        model = vllm_config.model_config
        given = (vllm_config.additional_config or {}).get("ngramspec", {})
        self.options = EngineOptions.read(given, "--additional-config ngramspec")
        k = int(vllm_config.speculative_config.num_speculative_tokens)
        device = getattr(vllm_config.device_config, "device_type", "cuda")
        dtype = str(model.dtype).removeprefix("torch.")
        self.rows = self.options.rows(
            k,
            vocab=int(model.get_vocab_size()),
            max_len=int(model.max_model_len),
            device="cpu" if device == "cpu" else "gpu",
            dtype=dtype,
            tokenizer=tokenizer_of(model) if self.options.stores else None,
        )
        self._drafts: bool | None = None
        self._logged = time.monotonic()

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Does nothing: there is no model to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: Int32,
        token_ids_cpu: Int32,
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft for all rows; [] is no draft. Never raises an Exception.

        Args:
            sampled_token_ids: tokens that the step committed, per row; none for a row in its
                prefill.
            num_tokens_no_spec: int32 (rows or more,), committed tokens of each row.
            token_ids_cpu: int32 (rows or more, max_model_len), the rows' tokens.
            slot_mappings: not used.
        """
        if self._drafts is None:
            self._drafts = tensor_parallel_rank() == 0
        if not self._drafts:
            return [[] for _ in sampled_token_ids]
        drafts = propose(self.rows, sampled_token_ids, num_tokens_no_spec, token_ids_cpu)
        if self.options.log_every and time.monotonic() - self._logged > self.options.log_every:
            self._logged = time.monotonic()
            stats = asdict(self.rows.stats) | self.rows.store_counts()
            stats |= {"live": len(self.rows), "bytes": self.rows.bytes}
            logger.info("ngramspec %s", json.dumps(stats))
        return drafts


def propose(
    rows: Rows, sampled: Sequence[Sequence[int]], lengths: Int32, tokens: Int32
) -> list[list[int]]:
    """See ``NgramspecProposer.propose``. Faults are counted in ``rows``."""
    try:
        current = [
            RowState(None, row, length, new)
            for row, length, new in zip(
                tokens, lengths[: len(sampled)].tolist(), sampled, strict=False
            )
        ]
        return [draft.tokens.tolist() for draft in rows.step(current)]
    except Exception as error:
        rows.fault(error)
        return [[] for _ in sampled]


def tokenizer_of(model: Any) -> Any:
    """The tokenizer of vLLM's model configuration, or None if it cannot be loaded."""
    try:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(
            model.tokenizer,
            revision=model.tokenizer_revision,
            trust_remote_code=model.trust_remote_code,
        )
    except Exception as error:
        logger.warning("stores are not checked against the model's tokenizer: %r", error)
        return None


def tensor_parallel_rank() -> int:
    """This process's rank in its tensor parallel group; 0 without a group."""
    try:
        from vllm.distributed import get_tensor_model_parallel_rank

        return int(get_tensor_model_parallel_rank())
    except (ImportError, AssertionError):
        return 0
