"""One answer: prefill in chunks, then step by step, as text that a client may see."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Int32
from ngramspec.server.kv_pool import CachePool, Lease
from ngramspec.server.sampling import Sampling, TokenLogprobs, logprobs_of
from ngramspec.server.text import Detokenizer, StopText
from ngramspec.speculator import Speculator
from ngramspec.stats import DecodeStats
from ngramspec.stepwise import Added, JointSteps, OpenGeneration, open_generation

logger = logging.getLogger("ngramspec.server")
STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"

ALONE = 4  # a job without others reads chunks so much longer: fewer passes over the weights


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What one answer shall be.

    Attributes:
        prompt: int32 (n,), at least one token.
        user: whose caches are used.
        sampling: how tokens are chosen.
        max_tokens: of the answer; 0: the prompt is read only.
        stops: strings that end it, and are not in it.
        indent: least indentation of its lines after the first, see ``StopText``.
        eos: ids that end it.
        hidden: ids of tokens that are not shown; None: the special ones.
        top_logprobs: likeliest tokens to report at each token; None: no log-probabilities.
        prompt_logprobs: whether they are reported for the prompt too.
        seconds: after the first token, and a line end, it ends; None: no limit.
        reference: text to draft from, int32 (n,), or None.
        stores: to draft from.
        first: whether it goes before those that are not.
    """

    prompt: Int32
    user: str
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    indent: int = 0
    eos: tuple[int, ...] = ()
    hidden: frozenset[int] | None = None
    top_logprobs: int | None = None
    prompt_logprobs: bool = False
    seconds: float | None = None
    reference: Int32 | None = None
    stores: tuple[Any, ...] = ()
    first: bool = True


@dataclass(frozen=True, slots=True)
class Delta:
    """What a turn adds to an answer.

    Attributes:
        text: to show.
        logprobs: of the tokens of this turn, if asked for.
        ended: why the answer has ended: "stop", "length" or "cancelled"; None: it has not.
        stop: the stop string that ended it, or None.
        error: what went wrong, or None.
    """

    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    ended: str | None = None
    stop: str | None = None
    error: Exception | None = None


@dataclass(slots=True)
class Progress:
    """What is known of an answer while it is made, and after.

    Attributes:
        submitted, started, first, ended: seconds of ``time.perf_counter``; 0.0: not yet.
        reused: tokens of the prompt whose keys and values were there.
        tokens: of the answer, the one that ended it included.
        stats: of its speculation, or None.
    """

    submitted: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first: float = 0.0
    ended: float = 0.0
    reused: int = 0
    tokens: list[int] = field(default_factory=list)
    stats: DecodeStats | None = None


class Job:
    """One answer that is made turn by turn. All but ``cancelled`` belongs to the engine's thread.

    Args:
        order: what it shall be.
        put: is given every Delta; the last one says why it ended.
        after: a job of the same prompt, whose cache is copied when it has read it; or None.

    Attributes:
        cancelled: set it from any thread; the job ends at its next turn.
        progress: counts and times.
        generation: behind the chunks of the prompt, until it ends; else None.
    """

    def __init__(
        self, order: CompletionRequest, put: Callable[[Delta], None], *, after: Job | None = None
    ) -> None:
        self.order, self._put, self._after = order, put, after
        self.cancelled = False
        self.progress = Progress()
        self.end: str | None = None  # why it ended; "error" if something went wrong
        self._lease: Lease | None = None
        self.generation: OpenGeneration | None = None
        self._text: Detokenizer | None = None
        self._stop = StopText(order.stops, order.indent)
        self._prompt_logprobs: list[TokenLogprobs] = []

    @property
    def ended(self) -> bool:
        """Whether it has ended."""
        return self.end is not None

    @property
    def ready(self) -> bool:
        """Whether it can take a turn."""
        after = self._after
        return after is None or after.ended or bool(after.progress.first)

    @property
    def joins(self) -> bool:
        """Whether its next turn is a step that can share its forward with other jobs' steps."""
        generation = self.generation
        return generation is not None and not self.cancelled and generation.why_alone is None

    def turn(self, runner: ModelRunner, alone: bool = False) -> None:
        """One forward: a chunk of the prompt, or a step. Errors end the job, and it says so.

        Args:
            runner: of what jobs have in common.
            alone: whether no other job waits for its turn.
        """
        try:
            if self.cancelled:
                self._end(runner, Delta(ended=CANCELLED))
            elif self.generation is not None:
                self._add(runner, self.generation.step())
            else:
                self._prefill(runner, runner.chunk * (ALONE if alone else 1))
        except Exception as error:
            self._fail(runner, error)

    def take(self, runner: ModelRunner, added: Added) -> None:
        """Go on behind a joint step, see ``turn_together``.

        Args:
            runner: of what jobs have in common.
            added: what the step added, or the error that closed the generation.
        """
        try:
            if isinstance(added, Exception):
                raise added
            self._add(runner, added)
        except Exception as error:
            self._fail(runner, error)

    def _fail(self, runner: ModelRunner, error: Exception) -> None:
        """End it with an error; its client may be what failed."""
        logger.error("an answer failed", exc_info=error)
        try:
            self._end(runner, Delta(ended=STOP, error=error))
        except Exception:  # such as a loop that is closed
            logger.exception("a request could not be told of its end")
            self.end = "error"

    def _prefill(self, runner: ModelRunner, chunk: int) -> None:
        """A chunk of the prompt; the last one belongs to the generation's own prefill."""
        order, progress = self.order, self.progress
        if self._lease is None:
            progress.started = time.perf_counter()
            self._lease = runner.pool.take(order.user, order.prompt, afresh=order.prompt_logprobs)
            progress.reused = self._lease.reused
        held, whole = len(self._lease.tokens), len(order.prompt)
        reads_all = order.prompt_logprobs or not order.max_tokens
        end = min(held + chunk, whole - 1)
        if held < whole - 1 and (reads_all or (whole - held > chunk and runner.cuts)):
            logits = runner.read(self._lease.cache, order.prompt[held:end], order.prompt_logprobs)
            self._lease.tokens = order.prompt[:end]
            if order.prompt_logprobs:
                tokens = order.prompt[held + 1 : end + 1].tolist()
                self._prompt_logprobs += logprobs_of(logits, tokens, order.top_logprobs or 0)
        elif not order.max_tokens:
            self._end(runner, Delta(logprobs=self._first_logprobs(), ended=LENGTH))
        else:
            self.generation = runner.open(order, self._lease.cache)
            progress.stats = self.generation.stats
            self._text = Detokenizer(runner.tokenizer, order.prompt.tolist(), hidden=order.hidden)
            self._add(runner, self.generation.step())

    def _first_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """Those of the prompt, once."""
        if not self.order.prompt_logprobs:
            return ()
        first = TokenLogprobs(int(self.order.prompt[0]), None)
        found, self._prompt_logprobs = (first, *self._prompt_logprobs), []
        return found

    def _add(self, runner: ModelRunner, tokens: list[int]) -> None:
        """Add a step's tokens, and show their text."""
        generation, progress, order = self.generation, self.progress, self.order
        assert generation is not None
        before = len(progress.tokens)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if order.top_logprobs is not None:
            logits = torch.cat(generation.take_logits())
            logprobs = tuple(logprobs_of(logits, tokens, order.top_logprobs))
        if not before:
            progress.first = time.perf_counter()
            assert self._lease is not None
            self._lease.tokens = order.prompt
            logprobs = (*self._first_logprobs(), *logprobs)
        text = self._show(tokens, generation.finished)
        logprobs = logprobs[: len(logprobs) - (before + len(tokens) - len(progress.tokens))]
        at_eos = bool(progress.tokens) and progress.tokens[-1] in order.eos
        if self._stop.found is not None:
            self._end(runner, Delta(text, logprobs, STOP, self._stop.found))
        elif generation.finished or self._too_late():
            text += self._show((), True)
            self._end(runner, Delta(text, logprobs, STOP if at_eos else LENGTH))
        else:
            self._put(Delta(text, logprobs))

    def _show(self, tokens: Sequence[int], last: bool) -> str:
        """Add tokens to the answer, up to the one that completes a stop string: what they show."""
        assert self._text is not None
        text = "" if tokens else self._stop.add(self._text.add((), last=last), last=last)
        for count, token in enumerate(tokens, start=1):
            ends = last and count == len(tokens)
            self.progress.tokens.append(token)
            text += self._stop.add(self._text.add((token,), last=ends), last=ends)
            if self._stop.found is not None:
                break
        return text

    def _too_late(self) -> bool:
        """Whether the answer's time is over, and it has a whole line."""
        limit = self.order.seconds
        over = limit is not None and time.perf_counter() - self.progress.first > limit
        return over and self._stop.has_line

    def _end(self, runner: ModelRunner, piece: Delta) -> None:
        """End the generation, give its cache back, and tell the client."""
        self.end = "error" if piece.error else piece.ended
        self.progress.ended = time.perf_counter()
        lease, generation = self._lease, self.generation
        try:
            if generation is not None and self.end in (STOP, LENGTH):
                generation.finish()
            elif generation is not None:
                generation.close()
        except Exception as error:
            piece = Delta(ended=STOP, error=piece.error or error)
        if lease is not None and piece.error is None:
            answer = np.array([] if generation is None else generation.tokens, np.int32)
            whole = np.concatenate((self.order.prompt, answer))
            runner.pool.give_back(lease, whole, len(self.order.prompt))
        elif lease is not None:
            runner.pool.drop(lease)
        self._lease = self.generation = None
        self._put(piece)


def turn_together(jobs: Sequence[Job], runner: ModelRunner) -> None:
    """The next step of several jobs that can join, in one forward. Errors end their own jobs."""
    generations = [job.generation for job in jobs if job.generation is not None]
    added = runner.steps.step(generations)
    for job, each in zip(jobs, added, strict=True):
        job.take(runner, each)


class ModelRunner:
    """What jobs have in common: the model, its caches and who speculates.

    Args:
        model: a transformers model.
        tokenizer: the model's.
        pool: of caches.
        chunk: most prompt tokens of one forward, while several jobs take turns.
        speculator: returns a user's Speculator.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        pool: CachePool,
        chunk: int,
        speculator: Callable[[str], Speculator],
    ) -> None:
        self.model, self.tokenizer, self.pool, self.chunk = model, tokenizer, pool, chunk
        self.steps = JointSteps(model)
        self._speculator = speculator

    @property
    def cuts(self) -> bool:
        """Whether prompts are read in chunks: caches that can be cut can also be continued."""
        return self.pool.why_afresh is None

    @torch.no_grad()
    def read(self, cache: Any, tokens: Int32, all_logits: bool) -> torch.Tensor:
        """Read a part of a prompt into a cache: logits (n, vocab), or of the last position only."""
        ids = torch.from_numpy(tokens.astype(np.int64))[None].to(self.model.device)
        keep = {} if all_logits else {"logits_to_keep": 1}
        out = self.model(input_ids=ids, past_key_values=cache, use_cache=True, **keep)
        logits: torch.Tensor = out.logits[0]
        return logits

    def open(self, order: CompletionRequest, cache: Any) -> OpenGeneration:
        """The generation of an order, over a cache that holds a beginning of its prompt."""
        ids = torch.from_numpy(order.prompt.astype(np.int64))[None].to(self.model.device)
        kept = {}
        if order.top_logprobs is not None:
            kept = {"return_dict_in_generate": True, "output_logits": True}
        return open_generation(
            self.model,
            ids,
            speculator=self._speculator(order.user),
            attention_mask=torch.ones_like(ids),  # a prompt may hold the padding token
            past_key_values=cache,
            max_new_tokens=order.max_tokens,
            eos_token_id=list(order.eos) or None,
            reference_ids=order.reference,
            extra_stores=list(order.stores),
            **order.sampling.arguments(ids.shape[1], self.model.device),
            **kept,
        )


def as_tokens(ids: Sequence[int]) -> Int32:
    """Token ids as int32 (n,)."""
    return np.array(ids, np.int32)
