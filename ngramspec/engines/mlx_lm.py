"""``stream_generate`` of mlx-lm with drafts. mlx-lm's decode loop has no hook, so this has one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ngramspec.costs.model import ForwardKind, model_of
from ngramspec.costs.policies import make_controller
from ngramspec.costs.steps import StepCosts
from ngramspec.decoding.row import Row, report_fault
from ngramspec.decoding.stores import CallStores
from ngramspec.errors import UnsupportedError
from ngramspec.speculator import Speculator
from ngramspec.stats import DecodeStats

try:
    import mlx.core as mx
    from mlx_lm.generate import GenerationResponse, generation_stream, wired_limit
    from mlx_lm.generate import stream_generate as plain
    from mlx_lm.models.cache import KVCache, RotatingKVCache, make_prompt_cache
    from mlx_lm.sample_utils import greedy_sampler
    from mlx_lm.tokenizer_utils import TokenizerWrapper
except ImportError as error:
    raise ImportError("ngramspec.engines.mlx_lm needs mlx-lm: pip install mlx-lm") from error

DEFAULT, MOST_BUSY = Speculator(), 0.9  # share of a forward; a busier caller hides its time
REFUSED = "draft_model", "input_embeddings", "kv_bits"  # the last amplifies rounding
UNUSED = "num_draft_tokens", "kv_group_size", "quantized_kv_start"  # without those


def stream_generate(
    model: Any,
    tokenizer: Any,
    prompt: str | Sequence[int] | mx.array,
    max_tokens: int = 256,
    draft_model: Any = None,
    stream: Any = generation_stream,
    *,
    speculator: Speculator | None = None,
    reference_ids: Sequence[int] = (),
    **kwargs: Any,
) -> Iterator[GenerationResponse]:
    """Generate as mlx-lm's function of this name, with its arguments and responses, and drafts.

    Close the iterator, or let go of it, before you use its ``prompt_cache`` again, which then holds
    the prompt and the yielded tokens. Accepted draft tokens have ``from_draft=True``.

    Args:
        speculator: drafts chains. None: one that such calls share.
        reference_ids: text that drafters read before the prompt, such as that of the prompt cache.

    Raises:
        UnsupportedError: an argument, cache or option excludes drafts. With ``unsupported="plain"``
            in the Speculator mlx-lm decodes instead.
    """
    if not isinstance(tokenizer, TokenizerWrapper):
        tokenizer = TokenizerWrapper(tokenizer)
    if isinstance(prompt, str):
        special = tokenizer.bos_token is None or not prompt.startswith(tokenizer.bos_token)
        prompt = tokenizer.encode(prompt, add_special_tokens=special)
    prompt, speculator = mx.array(prompt), DEFAULT if speculator is None else speculator
    if not max_tokens or not prompt.size:
        raise ValueError(f"max_tokens and prompt must not be empty, got {max_tokens}, {prompt}")
    given = kwargs | {"draft_model": draft_model, "stream": stream}
    given["refused"] = [name for name in REFUSED if given.pop(name, None) is not None]
    given = {name: value for name, value in given.items() if name not in UNUSED}
    try:
        text = _Text(model, tokenizer, prompt, max_tokens, speculator, reference_ids, **given)
    except UnsupportedError as error:
        if speculator.unsupported != "plain":
            raise
        speculator.fell_back(str(error))
        return iter(plain(model, tokenizer, prompt, max_tokens, draft_model, stream, **kwargs))
    return _responses(text)


def _responses(text: _Text) -> Iterator[GenerationResponse]:
    """mlx-lm's responses with a text's tokens."""
    detokenizer, size, began = text.tokenizer.detokenizer, text.prompt.size, perf_counter()
    with wired_limit(text.model, [text.stream]), closing(text.tokens()) as tokens:
        for count, (token, logprobs, drafted) in enumerate(tokens, 1):
            if count == 1:
                text.stats.prefill_seconds = perf_counter() - began
                prompt_tps, began = size / text.stats.prefill_seconds, perf_counter()
            reason = "length" if count == text.max_tokens else None
            if token in text.tokenizer.eos_token_ids:
                reason = "stop"
            else:
                detokenizer.add_token(token)
            if reason is not None:
                detokenizer.finalize()
                tokens.close()
            rate, peak = count / (perf_counter() - began), mx.get_peak_memory() / 1e9
            said = detokenizer.last_segment, token, logprobs, drafted
            yield GenerationResponse(*said, size, prompt_tps, count, rate, peak, reason)


class _Text:
    """One generation. Each forward starts before the token that it begins with is yielded."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        prompt: mx.array,
        max_tokens: int,
        speculator: Speculator,
        reference: Sequence[int],
        stream: Any,
        refused: list[str],
        sampler: Callable[[mx.array], mx.array] | None = None,
        logits_processors: Sequence[Callable[[mx.array, mx.array], mx.array]] | None = None,
        prompt_cache: list[Any] | None = None,
        max_kv_size: int | None = None,
        prefill_step_size: int = 2048,
        prompt_progress_callback: Callable[[int, int], None] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.prompt, self.stream = model, tokenizer, prompt, stream
        self.max_tokens, self.speculator, options = max_tokens, speculator, speculator.options
        bad = {"on_step": options.on_step is not None, "lenience, typical": not options.exact}
        bad |= {"width": bool(options.fixed_width), "a model": bool(speculator.drafter.assistants)}
        refused += [name for name, value in bad.items() if value]
        self.stats, self.reference = DecodeStats(), np.array(reference, np.int32)
        self.cache: Any = prompt_cache or make_prompt_cache(model, max_kv_size)
        for kind in {type(each) for each in self.cache} - {KVCache, RotatingKVCache}:
            refused.append(f"{'prompt_cache' if prompt_cache else 'model'} with a {kind.__name__}")
        if refused:
            raise UnsupportedError(f"{', '.join(refused)} is not supported with drafts in mlx-lm")
        self.sampler, self.processors = sampler or greedy_sampler, logits_processors or ()
        self.at_once = self.sampler is greedy_sampler and not self.processors
        self.chunk, self.progress = prefill_step_size, prompt_progress_callback or (lambda *_: None)
        forwards = model_of(model, ForwardKind("cpu", attention="mlx"))
        costs = self.costs = StepCosts(forwards, options.longest + 1, pads=False)
        lengths = make_controller(options.planned_gamma, options.longest, costs.required_tokens)
        self.learns = options.planned_gamma == "auto"
        self.row = Row(partial(report_fault, self.stats), lengths)
        self.row.place_in(np.array(prompt, np.int64), prompt.size)
        self.stores = CallStores(lambda: speculator.drafter, None, None, speculator.log_once)
        self.last = prompt[-1:]  # the token before the next choice
        self.buffer, self.count = prompt, prompt.size - 1  # the tokens before it, and their number
        self.length = self.kept = self.cache[0].offset  # before the forward; if closed now

    def tokens(self) -> Generator[tuple[int, mx.array, bool], None, None]:
        """Each token, its log probabilities (vocab,), and whether it was drafted; without end."""
        ready: tuple[int, mx.array, bool] | None = None
        emitted: list[int] = []
        try:
            with mx.stream(self.stream):
                self.prefill()
                while True:
                    draft, drafted = self.row.draft.tokens.tolist(), True
                    emitted.clear()
                    while drafted:
                        token, logprobs = self.choose(len(emitted))
                        if ready is not None:
                            self.kept = self.length + 1 + len(emitted)
                            yield ready
                        emitted.append(self.read(token, first=not emitted))
                        drafted = draft[: len(emitted)] == emitted
                        ready = emitted[-1], logprobs, drafted
                    self.next_step(emitted)
        finally:
            self.trim(self.kept)
            if (left := self.kept - self.length - 1) > 0:  # inside a draft
                self.commit(emitted[:left])
                self.count_step(left, left)
            self.row.end(completed=True)
            self.row.close()
            self.speculator.count(self.stats)

    def prefill(self) -> None:
        left = self.prompt
        while left.size > 1:
            self.progress(self.prompt.size - left.size, self.prompt.size)
            chunk = left[: min(self.chunk, left.size - 1)]
            self.model(chunk[None], cache=self.cache)
            mx.eval([each.state for each in self.cache])
            left = left[chunk.size :]
            self.length = self.kept = self.kept + chunk.size
            mx.clear_cache()
        self.progress(self.prompt.size - 1, self.prompt.size)
        self.forward(left)

    def forward(self, tokens: mx.array) -> None:
        """Start the forward of ``tokens`` (n,): the last committed one, and its draft."""
        self.started, self.chosen = perf_counter(), list[tuple[mx.array, mx.array]]()
        self.logits = self.model(tokens[None], cache=self.cache)
        if self.at_once:
            mx.async_eval([self.choose(position) for position in range(tokens.size)])

    def choose(self, position: int) -> tuple[mx.array, mx.array]:
        """The token (1,) of mlx-lm's sampler at a position, and its log probabilities (vocab,)."""
        if position == len(self.chosen):
            logits = self.logits[:, position, :]
            seen = self.seen() if self.processors else self.last
            for processor in self.processors:
                logits = processor(seen, logits)
            logprobs = logits - mx.logsumexp(logits, keepdims=True)
            self.chosen.append((self.sampler(logprobs), logprobs.squeeze(0)))
            if not self.at_once:
                mx.async_eval(self.chosen[-1])
        return self.chosen[position]

    def seen(self) -> mx.array:
        """All tokens (n,), with the last one, which is added in place; a full buffer doubles."""
        if self.count == self.buffer.size:
            room = mx.zeros(self.buffer.shape, self.last.dtype)
            self.buffer = mx.concatenate([self.buffer, room])
        self.buffer = mx.slice_update(self.buffer, self.last, mx.array([self.count]), [0])
        self.count += 1
        return self.buffer[: self.count]

    def read(self, token: mx.array, *, first: bool) -> int:
        began, found, self.last = perf_counter(), int(token.item()), token
        if first:
            seconds = perf_counter() - self.started
            self.stats.forward_seconds += seconds * self.row.connected
            if began - self.started < MOST_BUSY * seconds:
                self.costs.record_time(1 + len(self.row.draft), seconds)
        return found

    def next_step(self, emitted: list[int]) -> None:
        """Remove what was rejected from the cache, draft after the last token, and start again."""
        row, stats = self.row, self.stats
        self.length += len(emitted)
        self.trim(self.length)
        drafting = row.connected
        if not drafting:  # the first step is the prefill
            self.connect()
        self.commit(emitted)
        if drafting:
            self.count_step(len(emitted), len(emitted) - 1)
        if stats.target_calls % 256 == 0:
            mx.clear_cache()
        began = perf_counter()
        row.reset()
        self.costs.at(self.length)
        ends = self.tokenizer.eos_token_ids
        if emitted[-1] not in ends and not (self.learns and self.costs.plain()):
            # A rotating cache that is full keeps what is rejected.
            sizes = [each.max_size for each in self.cache if isinstance(each, RotatingKVCache)]
            left = self.max_tokens - stats.emitted - stats.runs if self.max_tokens > 0 else 1 << 20
            row.propose(min([left, *(size - self.length - 1 for size in sizes)]) - 1, tree=False)
        stats.draft_seconds += perf_counter() - began
        self.forward(mx.array([emitted[-1], *row.draft.tokens.tolist()], mx.uint32))

    def commit(self, emitted: list[int]) -> None:
        """Commit the tokens of a step, and learn from it."""
        for token in emitted:
            self.row.advance(token)
        self.row.judge()
        self.row.learn()

    def count_step(self, emitted: int, accepted: int) -> None:
        """Count a step that verified a draft, maybe an empty one."""
        row, stats = self.row, self.stats
        stats.count_step(row.draft, row.verdict, row.source_names)
        stats.host_syncs += 1 if self.at_once else emitted
        drafted = len(row.draft)
        self.costs.record_acceptance(1 + drafted, drafted, accepted)

    def connect(self) -> None:
        """Count the prefill, after which the size of the vocabulary is known, and allow drafts."""
        self.stats.runs += 1
        self.progress(self.prompt.size, self.prompt.size)
        vocab, row = self.logits.shape[-1], self.row
        stores = self.stores.row(vocab)
        row.begin(vocab, self.reference, reference=len(self.reference))
        row.connect(self.stores.current, prepared=stores.given_to, stored=stores)

    def trim(self, length: int) -> None:
        for each in self.cache:
            if each.offset > length and each.is_trimmable():
                each.trim(each.offset - length)
