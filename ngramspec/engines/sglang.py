"""SGLang: the speculative algorithm NGRAMSPEC, a plugin of the group ``sglang.srt.plugins``.

    NGRAMSPEC_OPTIONS='{"drafter": "auto"}' python -m sglang.launch_server --model-path MODEL \
        --speculative-algorithm NGRAMSPEC --speculative-num-draft-tokens 12

It is SGLang's n-gram worker with another draft source: trees of a fixed number of nodes, the most
probable first. Checked against SGLang 0.5.23's registry, worker and corpus; not run on a GPU.
"""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ngramspec.draft import Draft
from ngramspec.engines.engine_texts import EngineTexts
from ngramspec.engines.row_options import EngineOptions
from ngramspec.engines.rows import Rows

NAME = "NGRAMSPEC"
OPTIONS = "NGRAMSPEC_OPTIONS"  # environment variable with EngineOptions as JSON


def register() -> None:
    """Register the algorithm. SGLang may call this repeatedly in every process."""
    from sglang.srt.speculative.spec_info import CustomSpecAlgo, SpeculativeAlgorithm

    try:
        SpeculativeAlgorithm.from_string(NAME)
        return
    except ValueError:  # not registered yet
        pass

    class NgramspecAlgorithm(CustomSpecAlgo):  # type: ignore[misc]
        """Behaves like SGLang's n-gram algorithm wherever SGLang distinguishes algorithms."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            from sglang.srt.arg_groups.speculative_hook import _handle_ngram

            _handle_ngram(server_args)

    registered = SpeculativeAlgorithm.register(
        NAME,
        supports_overlap=True,
        spec_class=NgramspecAlgorithm,
        validate_server_args=check_server_args,
    )
    registered(worker_class)


def options() -> EngineOptions:
    """Read the options from the environment variable, which holds JSON.

    Raises:
        TypeError, ValueError: it is not JSON, or an option is unknown or wrong.
    """
    return EngineOptions.read(json.loads(os.environ.get(OPTIONS) or "{}"), OPTIONS)


def check_server_args(server_args: Any) -> None:
    """Check SGLang's arguments; a ValueError names an unsupported one and the remedy."""
    options()
    if getattr(server_args, "tp_size", 1) != 1:
        raise ValueError(
            f"{NAME}: tp_size must be 1, got {server_args.tp_size}: every rank would draft for"
            " itself; use --speculative-algorithm NGRAM"
        )
    if getattr(server_args, "speculative_ngram_external_corpus_path", None) is not None:
        raise ValueError(f"{NAME} reads no --speculative-ngram-external-corpus-path; leave it out")


def worker_class(server_args: Any) -> type:
    """Make the worker class of the algorithm."""
    from sglang.srt.speculative.ngram_worker import NGRAMWorker

    class NgramspecWorker(NGRAMWorker):  # type: ignore[misc]
        """SGLang's n-gram worker with drafts of ``NgramspecCorpus``."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            config = self.model_runner.model_config
            rows = options().rows(
                max(self.draft_token_num - 1, 1),
                vocab=int(config.vocab_size),
                max_len=int(config.context_len),
                device="gpu",
                dtype="bfloat16",
                tree=True,
            )
            self.ngram_corpus = NgramspecCorpus(rows, self.draft_token_num)

        def _prepare_draft_tokens(self, batch: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
            """Like SGLang's, but passes only those tokens that the corpus does not know yet."""
            previous = self._previous_tokens(batch)
            keys, tails, totals = [], [], []
            for request, accepted in zip(batch.reqs, previous, strict=True):
                parts = (request.origin_input_ids_unpadded, request.output_ids, accepted)
                total = sum(len(part) for part in parts)
                new = total - self.ngram_corpus.known(request.rid)
                keys.append(request.rid)
                tails.append(last_tokens(parts, new if 0 < new <= total else total))
                totals.append(total)
            return self.ngram_corpus.batch_get(keys, tails, totals)

        def _previous_tokens(self, batch: Any) -> list[list[int]]:
            """Each row's accepted tokens that are not yet in its request."""
            if not self.enable_overlap or batch.grammar_needs_sync():
                return [[] for _ in batch.reqs]
            tokens = batch.spec_info.accept_tokens.cpu().tolist()
            lengths = batch.spec_info.accept_lens.cpu().tolist()
            starts = (at * self.draft_token_num for at in range(len(lengths)))
            return [tokens[at : at + n] for at, n in zip(starts, lengths, strict=True)]

        def _update_ngram_corpus(self, batch: Any) -> None:
            """Does nothing: ``_prepare_draft_tokens`` passes the new tokens."""

    return NgramspecWorker


def last_tokens(parts: Sequence[Sequence[int]], count: int) -> list[int]:
    """The last ``count`` tokens of the concatenated parts."""
    found: list[list[int]] = []
    for part in reversed(parts):
        if count > 0 and len(part):
            found.append(list(part[-count:]))
            count -= len(found[-1])
    return [token for part in reversed(found) for token in part]


class NgramspecCorpus:
    """Replaces the ``NgramCorpus`` that SGLang's n-gram worker asks for drafts.

    Each tree has the fixed number of ``nodes``, including the last committed token.
    """

    def __init__(self, rows: Rows, nodes: int) -> None:
        self.rows = rows
        self.nodes = nodes
        self._texts = EngineTexts()

    def known(self, key: Hashable) -> int:
        """Number of known tokens of a request."""
        return self._texts.known(key)

    def batch_get(
        self,
        req_ids: Sequence[Hashable],
        batch_tokens: Sequence[Sequence[int]],
        total_lens: Sequence[int],
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Draft trees for a batch, by the last tokens of each text: all that are not known yet.

        Returns:
            tokens, int64 (rows * nodes,): each row's last committed token and its draft, padded
            with 0; and mask, int64 (rows * nodes * nodes,): 1 for a node's ancestors and itself.
        """
        rows = list(map(self._texts.row, req_ids, batch_tokens, total_lens))
        drafts = self.rows.step(rows)
        tokens = np.zeros((len(rows), self.nodes), np.int64)
        mask = np.zeros((len(rows), self.nodes, self.nodes), np.int64)
        for at, (row, draft) in enumerate(zip(rows, drafts, strict=True)):
            tokens[at, 0] = row.tokens[row.length - 1]
            tokens[at, 1 : 1 + len(draft)] = draft.tokens
            mask[at] = ancestors(draft, self.nodes)
        return tokens.reshape(-1), mask.reshape(-1)

    def erase_match_state(self, req_ids: Iterable[Hashable]) -> None:
        """Forget requests that left the batch."""
        for key in req_ids:
            self._texts.drop(key)
            self.rows.finish(key)

    def reset(self) -> None:
        """Forget all requests."""
        self._texts.clear()
        self.rows.close()

    def batch_put(self, batch_tokens: Sequence[Sequence[int]]) -> None:
        """Does nothing: ``batch_get`` gets all committed tokens."""

    def synchronize(self) -> None:
        """Does nothing: nothing runs in the background."""

    @property
    def remaining_token_budget(self) -> int:
        """0: external corpora are not supported."""
        return 0

    def load_external_corpus_named(self, corpus_id: str, chunks: Iterable[Sequence[int]]) -> int:
        """Raises a ValueError: external corpora are not supported."""
        raise ValueError(f"{NAME} has no external corpora, got {corpus_id!r}; use NGRAM")

    def commit_external_corpus_load(self, corpus_id: str, loaded_token_count: int) -> None:
        """Does nothing."""

    def remove_external_corpus(self, corpus_id: str) -> None:
        """Does nothing."""

    def list_external_corpora(self) -> dict[str, int]:
        """An empty dict."""
        return {}


def ancestors(draft: Draft, nodes: int) -> NDArray[np.int64]:
    """The attention mask of a tree after the last committed token, int64 (nodes, nodes).

    Node 0 is the committed token, followed by the draft's nodes. The remaining ones are padding.
    As in SGLang, they are children of node 0.
    """
    mask = np.eye(nodes, dtype=np.int64)
    mask[:, 0] = 1
    parents = range(-1, len(draft) - 1) if draft.parents is None else draft.parents.tolist()
    for node, parent in enumerate(parents, 1):
        mask[node, : parent + 2] |= mask[parent + 1, : parent + 2]
    return mask
