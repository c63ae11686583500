"""One answer: a prefill in chunks, then decoding step by step into text for the client."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from ngramspec.draft import Int32
from ngramspec.drafters.tool_calls import ToolCalls
from ngramspec.hf_model.compat.cache_name import cache_argument
from ngramspec.server.kv_pool import CachePool, Lease
from ngramspec.server.sampling import Sampling, TokenLogprobs, logprobs_of
from ngramspec.server.text import Detokenizer, StopText
from ngramspec.speculator import Speculator
from ngramspec.stats import DecodeStats
from ngramspec.stepwise import Added, JointSteps, OpenGeneration, open_generation
from ngramspec.stores.shared import SiblingAnswer, sibling_answers

logger = logging.getLogger("ngramspec.server")
STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"

LONE_CHUNK_FACTOR = 4  # times ``chunk`` while no other job waits: fewer passes; not tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest:
    """What one answer must be."""

    prompt: Int32  # (n,), at least one token
    user: str
    sampling: Sampling
    max_tokens: int  # 0 only reads the prompt
    stops: tuple[str, ...] = ()  # strings that end the answer and are not part of it
    indent: int = 0  # minimum indentation of the lines after the first, see ``StopText``
    eos: tuple[int, ...] = ()
    hidden: frozenset[int] | None = None  # ids that are not shown; None: the special tokens
    top_logprobs: int | None = None  # most probable tokens to report; None: no log-probabilities
    prompt_logprobs: bool = False  # whether those of the prompt are reported, too
    # The answer ends once it has a whole line and this time has passed since its first token.
    seconds: float | None = None
    reference: Int32 | None = None  # (n,), text to draft from
    stores: tuple[Any, ...] = ()
    speculate: bool = True  # if not, ``stores`` and ``reference`` are unused
    siblings: tuple[SiblingAnswer, ...] = ()  # itself, if it is one of several; else empty
    session: str | None = None  # the name of the conversation in ``stores``
    tools: ToolCalls | None = None  # whose calls are predicted in drafts
    first: bool = True  # whether the answer has priority (a completion); False for chats


@dataclass(frozen=True, slots=True)
class Delta:
    """The part of an answer that one turn adds."""

    text: str = ""
    logprobs: tuple[TokenLogprobs, ...] = ()
    ended: str | None = None  # why the answer has ended: "stop", "length" or "cancelled"
    stop: str | None = None  # the stop string that ended it
    error: Exception | None = None  # the error that ended it
    tokens: tuple[int, ...] = ()  # of the turn; their text may come later


@dataclass(slots=True)
class Progress:
    """Counts of an answer, and times in seconds of ``time.perf_counter``; 0.0: not yet."""

    submitted: float = field(default_factory=time.perf_counter)
    started: float = 0.0
    first: float = 0.0  # of the first token
    ended: float = 0.0
    reused: int = 0  # number of prompt tokens whose keys and values were cached
    tokens: list[int] = field(default_factory=list)  # including the one that ended it
    stats: DecodeStats | None = None


class Job:
    """One answer, generated turn by turn.

    Args:
        put: receives every Delta; the last one says why the answer ended.
        after: a job with the same prompt, whose cache is copied after its prefill; or None.

    Attributes:
        session: user and session of the request, set by the Scheduler, or None.
        cancelled: ends the job at its next turn; the only attribute that any thread may set.
        generation: the open generation, from the last chunk of the prompt to the end; else None.
    """

    def __init__(
        self, request: CompletionRequest, put: Callable[[Delta], None], *, after: Job | None = None
    ) -> None:
        self.request, self._put, self._after = request, put, after
        self.session: tuple[str, str] | None = None
        self.cancelled = False
        self.progress = Progress()
        self.end: str | None = None  # "stop", "length", "cancelled" or "error"
        self._lease: Lease | None = None
        self.generation: OpenGeneration | None = None
        self._text: Detokenizer | None = None
        self._stop = StopText(request.stops, request.indent)
        self._prompt_logprobs: list[TokenLogprobs] = []

    @property
    def ended(self) -> bool:
        """Whether the answer has ended."""
        return self.end is not None

    @property
    def ready(self) -> bool:
        """Whether the job can take a turn: it does not wait for another job's cache."""
        after = self._after
        return after is None or after.ended or bool(after.progress.first)

    @property
    def joins(self) -> bool:
        """Whether the next turn is a step that can share a forward with other jobs' steps."""
        generation = self.generation
        return generation is not None and not self.cancelled and generation.why_alone is None

    def turn(self, runner: ModelRunner, *, alone: bool = False, added: Added | None = None) -> None:
        """Run one forward: a chunk of the prompt or a step. An error ends the job and is reported.

        ``alone``: whether no other job waits for a turn. ``added``: the result of a joint step that
        was run already, tokens or the error that closed the generation.
        """
        try:
            if isinstance(added, Exception):
                raise added
            if added is not None:
                self._add(runner, added)
            elif self.cancelled:
                self._end(runner, Delta(ended=CANCELLED))
            elif self.generation is not None:
                self._add(runner, self.generation.step())
            else:
                self._prefill(runner, runner.chunk * (LONE_CHUNK_FACTOR if alone else 1))
        except Exception as error:
            self._fail(runner, error)

    def _fail(self, runner: ModelRunner, error: Exception) -> None:
        """End the job with an error, even if the client cannot be told.

        The error is kept without its traceback, whose frames hold the cache.
        """
        logger.error("an answer failed", exc_info=error)
        error.__traceback__ = None
        try:
            self._end(runner, Delta(ended=STOP, error=error))
        except Exception:  # such as a loop that is closed
            logger.exception("a request could not be told of its end")
            self.end = "error"

    def _prefill(self, runner: ModelRunner, chunk: int) -> None:
        """Read a chunk of the prompt; the generation's own prefill reads the last one."""
        request, progress = self.request, self.progress
        if self._lease is None:
            progress.started = time.perf_counter()
            self._lease = runner.pool.take(
                request.user, request.prompt, afresh=request.prompt_logprobs
            )
            progress.reused = self._lease.reused
        held, whole = len(self._lease.tokens), len(request.prompt)
        reads_all = request.prompt_logprobs or not request.max_tokens
        marked = self._lease.last_mark(whole)
        end = min(held + chunk, marked if held < marked else whole - 1)
        apart = runner.keeps and (held < marked or whole - held > chunk)
        if held < whole - 1 and (reads_all or apart):
            logits = runner.read(
                self._lease.cache, request.prompt[held:end], request.prompt_logprobs
            )
            self._lease.tokens = request.prompt[:end]
            if runner.keeps:
                self._lease.mark()
            if request.prompt_logprobs:
                tokens = request.prompt[held + 1 : end + 1].tolist()
                self._prompt_logprobs += logprobs_of(logits, tokens, request.top_logprobs or 0)
        elif not request.max_tokens:
            self._end(runner, Delta(logprobs=self._first_logprobs(), ended=LENGTH))
        else:
            self.generation = runner.open(request, self._lease.cache)
            progress.stats = self.generation.stats
            self._text = Detokenizer(
                runner.tokenizer, request.prompt.tolist(), hidden=request.hidden
            )
            self._add(runner, self.generation.step())

    def _first_logprobs(self) -> tuple[TokenLogprobs, ...]:
        """The log-probabilities of the prompt, returned only once."""
        if not self.request.prompt_logprobs:
            return ()
        first = TokenLogprobs(int(self.request.prompt[0]), None)
        found, self._prompt_logprobs = (first, *self._prompt_logprobs), []
        return found

    def _add(self, runner: ModelRunner, tokens: list[int]) -> None:
        """Add a step's tokens and send their text."""
        generation, progress, request = self.generation, self.progress, self.request
        assert generation is not None
        before = len(progress.tokens)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if request.top_logprobs is not None:
            logits = torch.cat(generation.take_logits())
            logprobs = tuple(logprobs_of(logits, tokens, request.top_logprobs))
        if not before:
            progress.first = time.perf_counter()
            assert self._lease is not None
            self._lease.tokens = request.prompt
            if runner.keeps:
                self._lease.mark()
            logprobs = (*self._first_logprobs(), *logprobs)
        assert self._text is not None
        text = ""
        for token in tokens:  # up to the one that completes a stop string
            progress.tokens.append(token)
            text += self._stop.add(self._text.add((token,)))
            if self._stop.found is None and self._stop.ends_in(self._text.held):
                text += self._stop.add(self._text.add((), last=True))
            if self._stop.found is not None:
                break
        logprobs = logprobs[: len(logprobs) - (before + len(tokens) - len(progress.tokens))]
        over = generation.finished or self._too_late()
        if over:
            text += self._stop.add(self._text.add((), last=True), last=True)
        delta = Delta(text, logprobs, tokens=tuple(progress.tokens[before:]))
        if self._stop.found is not None:
            self._end(runner, replace(delta, ended=STOP, stop=self._stop.found))
        elif over:
            at_eos = bool(progress.tokens) and progress.tokens[-1] in request.eos
            self._end(runner, replace(delta, ended=STOP if at_eos else LENGTH))
        else:
            self._put(delta)

    def _too_late(self) -> bool:
        """Whether the answer's time limit has passed and it has a whole line."""
        limit = self.request.seconds
        over = limit is not None and time.perf_counter() - self.progress.first > limit
        return over and self._stop.has_line

    def _end(self, runner: ModelRunner, delta: Delta) -> None:
        """End the generation, return its cache to the pool and send the last delta."""
        self.end = "error" if delta.error else delta.ended
        self.progress.ended = time.perf_counter()
        lease, generation = self._lease, self.generation
        try:
            if generation is not None and self.end in (STOP, LENGTH):
                generation.finish()
            elif generation is not None:
                generation.close()
        except Exception as error:
            logger.error("an answer could not be closed", exc_info=error)
            delta = Delta(ended=STOP, error=delta.error or error.with_traceback(None))
        if lease is not None and delta.error is None:
            answer = np.array([] if generation is None else generation.tokens, np.int32)
            whole = np.concatenate((self.request.prompt, answer))
            runner.pool.give_back(lease, whole, len(self.request.prompt))
        elif lease is not None:
            runner.pool.drop(lease)
        self._lease = self.generation = None
        self._put(delta)


def turn_together(jobs: Sequence[Job], runner: ModelRunner) -> None:
    """Run the next step of several jobs in one forward. An error ends only its own job."""
    generations = [job.generation for job in jobs if job.generation is not None]
    added = runner.steps.step(generations)
    for job, each in zip(jobs, added, strict=True):
        job.turn(runner, added=each)


class ModelRunner:
    """What all jobs share: the model, its caches and its Speculators.

    ``chunk`` is the maximum number of prompt tokens of one forward while several jobs take turns.
    ``speculator`` returns the Speculator of a user.
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
        self.keeps = pool.why_afresh is None  # a cache that can be kept can also be continued
        self._speculator, self._plain = speculator, Speculator("none")

    def _ids(self, tokens: Int32) -> torch.Tensor:
        return torch.from_numpy(tokens.astype(np.int64))[None].to(self.model.device)

    @torch.no_grad()
    def read(self, cache: Any, tokens: Int32, all_logits: bool) -> torch.Tensor:
        """Read part of a prompt into a cache.

        Return the logits (n, vocab) if ``all_logits``, else (1, vocab) of the last position.
        """
        ids = self._ids(tokens)
        keep = {} if all_logits else {"logits_to_keep": 1}
        out = self.model(input_ids=ids, **cache_argument(cache), use_cache=True, **keep)
        logits: torch.Tensor = out.logits[0]
        return logits

    def open(self, request: CompletionRequest, cache: Any) -> OpenGeneration:
        """Open the generation of a request over a cache that holds a prefix of its prompt."""
        ids = self._ids(request.prompt)
        kept = {}
        if request.top_logprobs is not None:
            kept = {"return_dict_in_generate": True, "output_logits": True}
        return open_generation(
            self.model,
            ids,
            speculator=self._speculator(request.user) if request.speculate else self._plain,
            attention_mask=torch.ones_like(ids),  # a prompt may hold the padding token
            **cache_argument(cache),
            max_new_tokens=request.max_tokens,
            eos_token_id=list(request.eos) or None,
            reference_ids=request.reference,
            extra_stores=[*request.stores, *request.siblings] if request.speculate else None,
            session=request.session,
            tools=request.tools if request.speculate else None,
            **request.sampling.arguments(ids.shape[1], self.model.device),
            **kept,
        )


def answers_of(sampling: Sampling, count: int, **common: Any) -> list[CompletionRequest]:
    """The requests of several answers to one prompt, which are drafted from each other.

    ``common`` are the other fields of each.
    """
    if count == 1:
        return [CompletionRequest(sampling=sampling, **common)]
    return [
        CompletionRequest(sampling=sampling.of_answer(index), siblings=(answer,), **common)
        for index, answer in enumerate(sibling_answers(count, common["max_tokens"]))
    ]
