"""Generation step by step, for programs that do other work between steps, and jobs in turns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from ngramspec.decoding.joint import Added, JointSteps, OpenGeneration, PromptPiece, opened
from ngramspec.draft import Int32
from ngramspec.errors import UnsupportedError
from ngramspec.hf import checked, run_in_hook
from ngramspec.hf_model.compat.caches import cache_argument
from ngramspec.hf_model.compat.devices import device_of
from ngramspec.hf_model.pool import MIN_COPIED_TOKENS, CachePool, Lease, common_prefix
from ngramspec.speculator import Speculator

__all__ = ["Added", "Job", "JointSteps", "ModelRunner", "OpenGeneration", "open_generation"]

LONE_CHUNK_FACTOR = 4  # times ``chunk`` while no other job waits: fewer passes; not tuned


def open_generation(
    model: Any, *args: Any, speculator: Speculator | None = None, **kwargs: Any
) -> OpenGeneration:
    """Begin a generation of one sequence that the caller advances step by step.

    This is for programs that do other work between steps, such as a server with several users. The
    text is that of ``generate``. After ``close``, a cache that was passed as an argument holds only
    committed tokens, so it can be passed again with a longer text. All steps run in the
    inference mode (torch.inference_mode) that is active when this function is called. So they may
    be called in another mode or in another thread.

    Args:
        model: a transformers model.
        *args: positional arguments of ``model.generate``.
        speculator: how to speculate; None: a new Speculator().
        **kwargs: keyword arguments of ``model.generate``, and ``reference_ids``, ``stores``,
            ``extra_stores`` and ``session``, see Speculator.__call__.

    Returns:
        The generation, before its prefill. Close it, or use it as a context manager.

    Raises:
        UnsupportedError: the request does not support speculation.
        ValueError: there are several rows.

    Example:
        ``with open_generation(model, ids, max_new_tokens=64) as run: first = run.step()``
    """
    speculator = checked(speculator)
    found = run_in_hook(model, model.generate, opened, speculator, args, kwargs)
    if not isinstance(found, OpenGeneration):
        name = type(model).__name__
        raise UnsupportedError(
            f"the generate of {name} does not return the result of custom_generate"
        )
    return found


class Job(ABC):
    """A text that a ModelRunner generates turn by turn, each one forward.

    The prompt is read in chunks into a cache of the runner's pool, where later jobs find it.

    Args:
        prompt: int32 (n,), at least one token.
        user: whose caches the job may use.

    Attributes:
        generates: whether anything follows the prompt.
        reads: whether it uses a cache of the pool; else its generation makes one.
        cancelled: the only attribute that any thread may set.
        lease: its cache, from the first turn to the end.
        generation: from the last chunk of the prompt on.
        ended: whether it takes no further turns.
    """

    generates = True
    reads = True
    cancelled = False
    ended = False

    def __init__(self, prompt: Int32, user: str = "") -> None:
        self.prompt, self.user = prompt, user
        self._after: Job | None = None  # the job that reads the prompt's beginning
        self._shared = 0  # tokens of that beginning
        self.lease: Lease | None = None
        self.generation: OpenGeneration | None = None

    @abstractmethod
    def open(self, runner: Any, cache: Any) -> OpenGeneration:
        """Open the generation over a cache that holds a prefix of the prompt, or over its own."""

    @abstractmethod
    def take(self, runner: Any, tokens: list[int]) -> None:
        """Take the tokens that a turn has added; there are none if only the prompt is read."""

    @abstractmethod
    def fail(self, runner: Any, error: Exception | None) -> None:
        """End the job because of an error, or because it was cancelled; call ``release``."""

    def begin(self, runner: ModelRunner) -> None:
        """Borrow a cache."""
        self.lease = runner.pool.take(self.user, self.prompt)

    def wait_for(self, others: Iterable[Job]) -> None:
        """Wait for the one that will read the longest common beginning, so that it is read once."""
        for other in others if self.reads else ():
            common = common_prefix(self.prompt[:-1], other.prompt)
            held = 0 if other.lease is None else len(other.lease.tokens)
            if other.reads and common > max(held, self._shared, MIN_COPIED_TOKENS - 1):
                self._after, self._shared = other, common

    @property
    def ready(self) -> bool:
        """Whether the job can take a turn: it does not wait for what another job reads."""
        after = self._after
        held = 0 if after is None or after.lease is None else len(after.lease.tokens)
        if after is not None and (after.ended or held >= self._shared):
            self._after = None
        return self._after is None

    @property
    def joins(self) -> bool:
        """Whether the next turn is a step that can share a forward with other jobs' steps."""
        generation = self.generation
        return generation is not None and not self.cancelled and generation.why_alone is None

    def joins_by_pieces(self, runner: ModelRunner) -> bool:
        """Whether the next turn can read a piece of the prompt in a joint step of others.

        All but the last token are read so. The generation then begins with a joint step.
        """
        early = self.generation is None and not self.cancelled and self.generates and self.reads
        return early and self.ready and runner.keeps and len(self.prompt) > 1

    def next_piece(self, runner: ModelRunner, most: int) -> PromptPiece | None:
        """The next tokens of the prompt, at most ``most``; None: all but its last token are read.

        An error ends the job, and is no reason for others to wait.
        """
        try:
            if self.lease is None:
                self.begin(runner)
            assert self.lease is not None
            held, whole = len(self.lease.tokens), len(self.prompt) - 1
            if held < whole:
                ids = runner.ids(self.prompt[held : min(held + most, whole)])
                return PromptPiece(self.lease.cache, ids)
            self.generation = self.open(runner, self.lease.cache)
            self.generation.skip_prefill()
        except Exception as error:
            self.fail(runner, error)
        return None

    def turn(self, runner: ModelRunner, *, alone: bool = False, added: Added | None = None) -> None:
        """Run one forward, unless a joint step has ``added`` its result. An error ends the job."""
        try:
            if isinstance(added, Exception):
                raise added
            if added is not None and self.generation is None:  # a piece was read
                self._note_read(runner)
            elif added is not None:
                self.take(runner, added)
            elif self.cancelled:
                self.fail(runner, None)
            elif self.generation is not None:
                self.take(runner, self.generation.step())
            else:
                self._read(runner, runner.chunk * (LONE_CHUNK_FACTOR if alone else 1))
        except Exception as error:
            self.fail(runner, error)

    def _read(self, runner: ModelRunner, chunk: int) -> None:
        """Read a chunk of the prompt; the generation's own prefill reads the last one."""
        if self.reads and self.lease is None:
            self.begin(runner)
        lease, whole = self.lease, len(self.prompt)
        if lease is None:
            self.generation = self.open(runner, None)
            self.take(runner, self.generation.step())
            return
        held, marked = len(lease.tokens), lease.last_mark(whole)
        end = min(held + chunk, marked if held < marked else whole - 1)
        apart = runner.keeps and (held < marked or whole - held > chunk)
        if held < whole - 1 and (apart or not self.generates):
            runner.read(lease.cache, self.prompt[held:end])
            lease.tokens = self.prompt[:end]
        elif self.generates:
            self.generation = self.open(runner, lease.cache)
            added = self.generation.step()
            lease.tokens = self.prompt
        else:
            self.take(runner, [])
            return
        if runner.keeps:
            lease.mark()
        if self.generation is not None:
            self.take(runner, added)

    def _note_read(self, runner: ModelRunner) -> None:
        """Note what the cache holds after a piece, and open the generation after the last one."""
        lease = self.lease
        assert lease is not None
        lease.tokens = self.prompt[: lease.cache.get_seq_length()]
        lease.mark()
        if len(lease.tokens) == len(self.prompt) - 1:
            self.next_piece(runner, 0)

    def release(self, runner: ModelRunner, *, finish: bool, keep: bool = True) -> None:
        """End the generation, and return its cache to the pool.

        ``finish``: as if a stopping rule had fired. ``keep``: the cache can be used again.
        """
        lease, generation = self.lease, self.generation
        self.lease = self.generation = None
        self.ended, kept = True, False
        try:
            if generation is not None and finish:
                generation.finish()
            elif generation is not None:
                generation.close()
            kept = keep
        finally:
            if lease is not None and kept:
                answer = np.array([] if generation is None else generation.tokens, np.int32)
                whole = np.concatenate((self.prompt, answer))
                runner.pool.give_back(lease, whole, len(self.prompt))
            elif lease is not None:
                runner.pool.drop(lease)


class ModelRunner:
    """Runs the turns of a model's jobs. Used by one thread.

    Args:
        model: a transformers model.
        pool: its caches.
        chunk: tokens of a prompt that are read in one turn.
    """

    def __init__(self, model: Any, pool: CachePool, chunk: int) -> None:
        self.model, self.pool, self.chunk = model, pool, chunk
        self.steps = JointSteps(model)
        self.keeps = pool.why_afresh is None  # a cache that can be kept can also be continued

    def turn(
        self, jobs: Sequence[Job], *, alone: bool = False, reading: Sequence[Job] = ()
    ) -> None:
        """Run one forward: a turn of one job, or a step that several share.

        ``alone``: no other job waits. ``reading``: jobs of which the joint step reads pieces of at
        most ``chunk`` tokens together, see ``Job.joins_by_pieces``; the last ones may get none.
        """
        pieces, left = dict[Job, PromptPiece](), self.chunk
        for job in reading:
            piece = job.next_piece(self, left) if left else None
            if piece is not None:
                pieces[job] = piece
                left -= piece.ids.shape[1]
        added: Sequence[Added | None] = [None]
        if len(jobs) > 1 or pieces:
            generations = [job.generation for job in jobs if job.generation]
            added = self.steps.step(generations, [*pieces.values()])
        for job, each in zip([*jobs, *pieces], added, strict=True):
            job.turn(self, alone=alone, added=each)

    def ids(self, tokens: Int32) -> torch.Tensor:
        """Tokens, int32 (n,), as the model's input, int64 (1, n)."""
        return torch.from_numpy(tokens.astype(np.int64))[None].to(device_of(self.model))

    @torch.no_grad()
    def read(self, cache: Any, tokens: Int32) -> None:
        """Read part of a prompt into a cache."""
        kept = {"use_cache": True, "logits_to_keep": 1}
        self.model(input_ids=self.ids(tokens), **cache_argument(cache), **kept)
