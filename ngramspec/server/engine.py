"""The thread that runs the model, one forward at a time, and the answers it sends to a client."""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from fastapi import Request

from ngramspec.draft import Int32
from ngramspec.drafters.headed import HeadedDrafter
from ngramspec.drafters.tool_calls import ToolCalls
from ngramspec.drafters.value import ValueDrafter
from ngramspec.errors import UnsupportedError
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compat.devices import device_of
from ngramspec.hf_model.pool import CachePool
from ngramspec.server.responses import ApiError, queue_full, shutting_down
from ngramspec.server.settings import Client
from ngramspec.server.text import Detokenizer, StopText, TokenLogprobs
from ngramspec.speculator import Speculator
from ngramspec.stats import DecodeStats
from ngramspec.stepwise import Job, ModelRunner, OpenGeneration, open_generation
from ngramspec.stores.shared import SiblingAnswer, sibling_answers

logger = logging.getLogger("ngramspec.server")
T = TypeVar("T")
STOP, LENGTH, CANCELLED = "stop", "length", "cancelled"
MAX_TURNS_BEFORE_CHAT = 16  # turns of a key's completions before a chat gets one; not tuned


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Sampling parameters with the names and defaults of OpenAI's API."""

    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0
    top_k: int = 0  # 0: all tokens
    min_p: float = 0.0
    presence_penalty: float = 0.0  # both are subtracted from the scores of tokens in the answer
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0  # transformers' penalty for tokens in prompt and answer
    logit_bias: Mapping[int, float] = field(default_factory=dict)  # added to scores, by token id
    seed: int | None = None  # None: a new random seed
    grammar: Any = None  # returns a processor that allows only a grammar's text; None: any text

    def arguments(self, prompt: int, device: torch.device) -> dict[str, Any]:
        """Arguments of ``generate``. All are given, so that the model's defaults have no effect."""
        given: dict[str, Any] = {
            "do_sample": self.temperature > 0,
            "repetition_penalty": self.repetition_penalty,
            "logits_processor": self._processors(prompt),
        }
        if self.logit_bias:
            # As a list, transformers 5.16 refuses token 0.
            given["sequence_bias"] = {(token,): bias for token, bias in self.logit_bias.items()}
        if self.temperature > 0:
            generator = torch.Generator(device)
            generator.manual_seed(secrets.randbits(63) if self.seed is None else self.seed)
            given |= {
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "min_p": self.min_p or None,
                "generator": generator,
            }
        return given

    def _processors(self, prompt: int) -> Any:
        from ngramspec.hf_model.compat.processors import processor_list

        found = processor_list()
        if self.presence_penalty or self.frequency_penalty:
            found.append(Penalties(prompt, self.presence_penalty, self.frequency_penalty))
        if self.grammar is not None:
            found.append(self.grammar())
        return found


class Penalties:
    """OpenAI's penalties: score - count * frequency - (count > 0) * presence, in the answer."""

    def __init__(self, prompt: int, presence: float, frequency: float) -> None:
        self._prompt, self._presence, self._frequency = prompt, presence, frequency

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Penalized scores (rows, vocab) after the tokens ``input_ids``, int64 (rows, length)."""
        answer = input_ids[:, self._prompt :].to(scores.device)
        counts = torch.zeros_like(scores).scatter_add_(
            1, answer, torch.ones_like(answer, dtype=scores.dtype)
        )
        return scores - counts * self._frequency - (counts > 0) * self._presence


def logprobs_of(logits: torch.Tensor, tokens: list[int], top: int) -> list[TokenLogprobs]:
    """The target's log-probabilities at each of n tokens, and the ``top`` most probable ones."""
    if not tokens:
        return []
    # JSON cannot represent minus infinity.
    scores = torch.log_softmax(logits.float(), dim=-1).nan_to_num(nan=-9999.0, neginf=-9999.0)
    chosen = scores.gather(1, torch.tensor(tokens, device=scores.device)[:, None])[:, 0].tolist()
    values, ids = scores.topk(top, dim=-1)
    rows = zip(tokens, chosen, ids.tolist(), values.tolist(), strict=True)
    return [
        TokenLogprobs(token, own, tuple(zip(best, each, strict=True)))
        for token, own, best, each in rows
    ]


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
    hidden: frozenset[int] = frozenset()  # ids that are not shown
    top_logprobs: int | None = None  # most probable tokens to report; None: no log-probabilities
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

    @classmethod
    def joined(cls, deltas: Sequence[Delta]) -> Delta:
        """The parts that consecutive turns add, as one."""
        return cls(
            text="".join(each.text for each in deltas),
            logprobs=tuple(row for each in deltas for row in each.logprobs),
            ended=deltas[-1].ended,
            stop=deltas[-1].stop,
            tokens=tuple(token for each in deltas for token in each.tokens),
        )


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


class AnswerJob(Job):
    """One answer, generated turn by turn."""

    def __init__(self, request: CompletionRequest, put: Callable[[Delta], None]) -> None:
        super().__init__(request.prompt, request.user)
        self.request, self._put = request, put
        self.generates = request.max_tokens > 0
        self.session: Client | None = None  # of whose requests only the latest one runs
        self.progress = Progress()
        self.end: str | None = None  # "stop", "length", "cancelled" or "error"
        self._text: Detokenizer | None = None
        self.stop = StopText(request.stops, request.indent)

    def begin(self, runner: ModelRunner) -> None:
        self.progress.started = time.perf_counter()
        super().begin(runner)
        assert self.lease is not None
        self.progress.reused = self.lease.reused

    def open(self, runner: AnswerRunner, cache: Any) -> OpenGeneration:
        generation = runner.open(self.request, cache)
        self.progress.stats = generation.stats
        prompt = self.request.prompt.tolist()
        self._text = Detokenizer(runner.tokenizer, prompt, self.request.hidden)
        return generation

    def fail(self, runner: ModelRunner, error: Exception | None) -> None:
        if error is None:
            self._end(runner, Delta(ended=CANCELLED))
            return
        logger.error("an answer failed", exc_info=error)
        error.__traceback__ = None  # its frames hold the cache
        try:
            self._end(runner, Delta(ended=STOP, error=error))
        except Exception:  # such as a loop that is closed
            logger.exception("a request could not be told of its end")
            self.end, self.ended = "error", True

    def take(self, runner: ModelRunner, tokens: list[int]) -> None:
        generation, progress, request = self.generation, self.progress, self.request
        if generation is None:
            self._end(runner, Delta(ended=LENGTH))
            return
        before = len(progress.tokens)
        logprobs: list[TokenLogprobs] = []
        if request.top_logprobs is not None:
            logits = torch.cat(generation.take_logits())
            logprobs = logprobs_of(logits, tokens, request.top_logprobs)
        if not before:
            progress.first = time.perf_counter()
        assert self._text is not None
        text = ""
        for token in tokens:  # up to the one that completes a stop string
            progress.tokens.append(token)
            text += self.stop.add(self._text.add((token,)))
            if self.stop.found is None and self.stop.ends_in(self._text.held):
                text += self.stop.add(self._text.add((), last=True))
            if self.stop.found is not None:
                break
        made = progress.tokens[before:]
        limit, since = request.seconds, time.perf_counter() - progress.first
        late = limit is not None and since > limit and self.stop.has_line
        over = generation.finished or late
        if over:
            text += self.stop.add(self._text.add((), last=True), last=True)
        delta = Delta(text, tuple(logprobs[: len(made)]), tokens=tuple(made))
        if self.stop.found is not None:
            self._end(runner, replace(delta, ended=STOP, stop=self.stop.found))
        elif over:
            at_eos = bool(progress.tokens) and progress.tokens[-1] in request.eos
            self._end(runner, replace(delta, ended=STOP if at_eos else LENGTH))
        else:
            self._put(delta)

    def _end(self, runner: ModelRunner, delta: Delta) -> None:
        """End the generation, return its cache to the pool and send the last delta."""
        self.end = "error" if delta.error else delta.ended
        self.progress.ended = time.perf_counter()
        try:
            self.release(runner, finish=self.end in (STOP, LENGTH), keep=delta.error is None)
        except Exception as error:
            logger.error("an answer could not be closed", exc_info=error)
            delta = Delta(ended=STOP, error=delta.error or error.with_traceback(None))
        self._put(delta)


class AnswerRunner(ModelRunner):
    """What all answers share: the model, its caches and its Speculators."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        pool: CachePool,
        chunk: int,
        speculator: Callable[[str], Speculator],
    ) -> None:
        super().__init__(model, pool, chunk)
        self.tokenizer = tokenizer
        self._speculator, self._plain = speculator, Speculator("none")

    def open(self, request: CompletionRequest, cache: Any) -> OpenGeneration:
        """Open the generation of a request over a cache that holds a prefix of its prompt."""
        ids = self.ids(request.prompt)
        reports = request.top_logprobs is not None
        speculator = self._speculator(request.user) if request.speculate else self._plain
        stores = isinstance(speculator.drafter, ValueDrafter | HeadedDrafter)  # others take none
        kept = {"return_dict_in_generate": True, "output_logits": True} if reports else {}
        return open_generation(
            self.model,
            ids,
            speculator=speculator,
            attention_mask=torch.ones_like(ids),  # a prompt may hold the padding token
            **cache_argument(cache),
            max_new_tokens=request.max_tokens,
            eos_token_id=list(request.eos) or None,
            reference_ids=request.reference,
            extra_stores=[*request.stores, *request.siblings] if stores else None,
            session=request.session,
            tools=request.tools if request.speculate else None,
            **request.sampling.arguments(ids.shape[1], device_of(self.model)),
            **kept,
        )


def answers_of(sampling: Sampling, count: int, **common: Any) -> list[CompletionRequest]:
    """The requests of several answers to one prompt, which are drafted from each other."""
    if count == 1:
        return [CompletionRequest(sampling=sampling, **common)]
    found = []
    for index, answer in enumerate(sibling_answers(count, common["max_tokens"])):
        seed = None if sampling.seed is None else (sampling.seed + index) % 2**63
        own = replace(sampling, seed=seed)
        found.append(CompletionRequest(sampling=own, siblings=(answer,), **common))
    return found


class Scheduler:
    """Chooses which jobs run next, going round the keys. Not thread-safe.

    Each turn is one forward: a chunk of one job's prompt, or a step, shared by up to ``active``
    answers that are being decoded if ``joint``. Of K consecutive turns, K keys with work lead one
    each. A key's completions come before its chats, which lead one turn after every
    MAX_TURNS_BEFORE_CHAT of its completions.

    ``active`` jobs have places, which go to the keys with the fewest. Beyond them, a key that has
    no completion or no chat in progress may begin one, unless ``crowded`` names the key because the
    caches of such jobs, its arguments, take too much memory. It then waits for a place.
    """

    def __init__(
        self,
        active: int,
        waiting: int,
        *,
        joint: Callable[[], bool] = lambda: True,
        crowded: Callable[[Sequence[AnswerJob]], Collection[str]] = lambda jobs: (),
    ) -> None:
        self._joint, self._max_active, self._max_jobs = joint, active, active + waiting
        self._crowded = crowded
        self._waiting: list[AnswerJob] = []
        self._active: list[AnswerJob] = []  # those with a place
        self._extra: list[AnswerJob] = []  # in progress without a place
        self._last: dict[AnswerJob, int] = {}  # the last turn of each job in progress
        self._led = Counter[str]()  # the last turn that each key led
        self._owed = Counter[str]()  # turns that each key's completions led while a chat was ready
        self._turn = 0

    @property
    def load(self) -> tuple[int, int]:
        """Numbers of jobs that take turns, and that wait."""
        return len(self._active) + len(self._extra), len(self._waiting)

    def add(self, jobs: Sequence[AnswerJob], session: Client | None = None) -> None:
        """Add a request's jobs, all or none. Of a session, only the latest request runs."""
        users = {job.request.user for job in jobs}
        known = [job for job in self._jobs if job.request.user in users]
        older, late = list[AnswerJob](), False
        for job in known:
            if job.session is not None and job.session == session:
                newer = job.session.arrived > session.arrived
                older, late = older + [job] * (not newer), late or newer
        if (
            sum(not job.cancelled and job not in older for job in known) + len(jobs)
            > self._max_jobs
        ):
            raise queue_full()
        for job in older:
            job.cancelled = True
        for job in jobs:
            job.session, job.cancelled = session, late
        self._waiting += jobs

    def next(self) -> list[AnswerJob]:
        """The jobs of the next turn: several share a forward; empty if none is ready."""
        self._begin()
        for job in self._jobs:
            if job.cancelled:
                return [job]
        crowded = self._crowded(self._extra) if self._extra else ()
        extra = [job for job in self._extra if job.request.user not in crowded]
        ready = [job for job in (*self._active, *extra) if job.ready]
        if not ready:
            return []
        ready.sort(key=self._last.__getitem__)
        user = min((job.request.user for job in ready), key=self._led.__getitem__)
        own = [job for job in ready if job.request.user == user]
        both = len({job.request.first for job in own}) == 2
        owed = self._owed[user] + both
        lead = min(own, key=lambda job: job.request.first == (owed > MAX_TURNS_BEFORE_CHAT))
        first, taken = lead.request.first, [lead]
        if lead.joins and self._joint():
            others = [job for job in ready if job.joins and job.request.first == first]
            taken += [job for job in others if job is not lead][: self._max_active - 1]
        self._turn += 1
        self._led[user], self._owed[user] = self._turn, owed if first else 0
        self._last |= dict.fromkeys(taken, self._turn)
        return taken

    def remove(self, job: AnswerJob) -> None:
        for jobs in (self._waiting, self._active, self._extra):
            if job in jobs:
                jobs.remove(job)
        self._last.pop(job, None)

    def cancel_all(self) -> None:
        for job in self._jobs:
            job.cancelled = True

    @property
    def _jobs(self) -> list[AnswerJob]:
        return [*self._waiting, *self._active, *self._extra]

    def _begin(self) -> None:
        """Give free places to jobs, and begin those that need none."""
        while len(self._active) < self._max_active and (self._extra or self._waiting):
            held = Counter(job.request.user for job in self._active)
            job = min(
                (*self._extra, *self._waiting),
                key=lambda job: (held[job.request.user], not job.request.first),
            )
            (self._extra if job in self._extra else self._waiting).remove(job)
            self._active.append(job)
            self._last.setdefault(job, self._turn)
        kinds = {_kind(job) for job in (*self._active, *self._extra)}
        for job in list(self._waiting):
            if _kind(job) not in kinds:
                kinds.add(_kind(job))
                self._waiting.remove(job)
                self._extra.append(job)
                self._last[job] = self._turn


def _kind(job: AnswerJob) -> tuple[str, bool]:
    """A job's key, and whether it is a completion."""
    return job.request.user, job.request.first


class Engine:
    """Runs jobs in a separate thread; its methods may be called from any thread."""

    def __init__(
        self, runner: AnswerRunner, active: int, waiting: int, on_end: Callable[[AnswerJob], None]
    ) -> None:
        self._runner, self._on_end = runner, on_end
        self.pool, self.closing = runner.pool, False
        steps = runner.steps
        self._scheduler = Scheduler(
            active, waiting, joint=lambda: steps.why_not is None, crowded=self._crowded
        )
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ngramspec-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(
        self,
        requests: Sequence[CompletionRequest],
        put: Callable[[int, Delta], None],
        session: Client | None = None,
    ) -> list[AnswerJob]:
        """Start the answers of one client request; an ApiError if they are refused."""
        jobs: list[AnswerJob] = []
        for index, request in enumerate(requests):
            job = AnswerJob(request, partial(put, index))
            job.wait_for(jobs)
            jobs.append(job)
        with self._changed:
            if self.closing:
                raise shutting_down()
            self._scheduler.add(jobs, session)
            self._changed.notify()
        return jobs

    def cancel(self, jobs: Sequence[AnswerJob]) -> None:
        """End jobs; the next turn is theirs."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    @property
    def load(self) -> tuple[int, int]:
        with self._changed:
            return self._scheduler.load

    def close(self) -> None:
        """Refuse new jobs, cancel all existing ones and wait for the current forward."""
        with self._changed:
            self.closing = True
            self._scheduler.cancel_all()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _crowded(self, jobs: Sequence[AnswerJob]) -> Collection[str]:
        return self.pool.crowded([job.lease for job in jobs if job.lease is not None])

    def _run(self) -> None:
        scheduler, runner = self._scheduler, self._runner
        while True:
            with self._changed:
                while not (jobs := scheduler.next()):
                    if self.closing:
                        return
                    self._changed.wait()
                alone = sum(scheduler.load) == 1
            runner.turn(jobs, alone=alone)
            for job in jobs:
                if job.ended:
                    self._leave(job)

    def _leave(self, job: AnswerJob) -> None:
        with self._changed:
            self._scheduler.remove(job)
        try:
            self._on_end(job)
        except Exception:
            logger.exception("a request could not be counted")


class Answers:
    """The answers of one client request, as a stream of deltas. Used in one event loop."""

    def __init__(
        self, engine: Engine, requests: Sequence[CompletionRequest], client: Client
    ) -> None:
        loop = asyncio.get_running_loop()
        self._engine = engine
        self._deltas = deltas = asyncio.Queue[tuple[int, Delta]]()

        def put(index: int, delta: Delta) -> None:
            loop.call_soon_threadsafe(deltas.put_nowait, (index, delta))  # no cycle through self

        self.jobs = engine.submit(requests, put, None if client.session is None else client)
        self._left = len(self.jobs)  # answers whose last delta was not read

    def cancel(self) -> None:
        if not all(job.ended for job in self.jobs):
            self._engine.cancel(self.jobs)

    @property
    def ended(self) -> bool:
        return self._left == 0

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Each answer's index and deltas, until all answers have ended."""
        try:
            while self._left:
                index, delta = await self._deltas.get()
                if isinstance(delta.error, UnsupportedError):
                    raise ApiError(400, str(delta.error))
                if delta.error is not None:  # its text is internal
                    raise ApiError(500, "the answer failed; the server's log says why")
                if delta.ended == CANCELLED and self._engine.closing:
                    raise shutting_down()
                if delta.ended == CANCELLED:
                    raise ApiError(499, "a newer request of the session ended this one")
                self._left -= delta.ended is not None
                yield index, delta
        finally:
            self.cancel()

    async def whole(self, request: Request) -> list[Delta]:
        """Each whole answer; generation stops when the client disconnects."""

        async def collect() -> list[Delta]:
            found: list[list[Delta]] = [[] for _ in self.jobs]
            async for index, delta in self.deltas():
                found[index].append(delta)
            return list(map(Delta.joined, found))

        try:
            return await while_connected(request, collect())
        finally:
            self.cancel()


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, and cancel it with an ApiError if the client closes the connection."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, watching = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client closed the connection")
        return await working
    finally:
        for task in (working, watching):
            task.cancel()
