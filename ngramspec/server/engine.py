"""The thread that runs the model: one forward at a time, in turns."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from ngramspec.server.job import CompletionRequest, Delta, Job, ModelRunner, turn_together
from ngramspec.server.kv_pool import PoolCounts
from ngramspec.server.scheduler import QueueFullError, Scheduler

logger = logging.getLogger("ngramspec.server")


class Engine:
    """Runs jobs in a thread of its own; its methods may be called from any thread.

    Args:
        runner: the model and its caches.
        active: jobs that take turns.
        waiting: jobs that wait for a place among them.
        on_end: called in the thread with every job that has ended.
    """

    def __init__(
        self,
        runner: ModelRunner,
        active: int,
        waiting: int,
        on_end: Callable[[Job], None] | None = None,
    ) -> None:
        self._maker, self._on_end = runner, on_end
        self._scheduler = Scheduler(active, waiting, joint=runner.steps.why_not is None)
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="ngramspec-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(
        self,
        orders: Sequence[CompletionRequest],
        put: Callable[[int, Delta], None],
        session: tuple[str, str] | None = None,
    ) -> list[Job]:
        """Begin the answers of one request.

        Args:
            orders: what they shall be.
            put: is given each answer's index and its pieces, in the engine's thread.
            session: user and session, if a newer request of it is to end this one.

        Raises:
            QueueFullError: too many wait already, or the engine is closing.
        """
        jobs: list[Job] = []
        for index, order in enumerate(orders):
            same = next((job for job in jobs if job.order.prompt is order.prompt), None)
            jobs.append(Job(order, _numbered(put, index), after=same))
        with self._changed:
            if self._closing:
                raise QueueFullError
            self._scheduler.add(jobs, session)
            self._changed.notify()
        return jobs

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs at their next turn, which is the next of all turns."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    @property
    def load(self) -> tuple[int, int]:
        """Jobs that take turns, and jobs that wait."""
        with self._changed:
            return self._scheduler.active, self._scheduler.waiting

    @property
    def pool_counts(self) -> PoolCounts:
        """What the pool of caches did."""
        return replace(self._maker.pool.counts)

    @property
    def pool_bytes(self) -> int:
        """Bytes of the idle caches, about."""
        return self._maker.pool.bytes

    @property
    def closing(self) -> bool:
        """Whether it takes no more jobs."""
        return self._closing

    def close(self) -> None:
        """Take no more jobs, cancel those that there are, and wait for the current forward."""
        with self._changed:
            self._closing = True
            self._scheduler.cancel_all()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                jobs = self._scheduler.next()
                while not jobs:
                    if self._closing:
                        return
                    self._changed.wait()
                    jobs = self._scheduler.next()
                alone = len(self._scheduler) == 1
            self._turn(jobs, alone)
            for job in jobs:
                if job.ended:
                    self._leave(job)

    def _turn(self, jobs: Sequence[Job], alone: bool) -> None:
        if len(jobs) > 1:
            turn_together(jobs, self._maker)
        else:
            jobs[0].turn(self._maker, alone)

    def _leave(self, job: Job) -> None:
        with self._changed:
            self._scheduler.remove(job)
        try:
            if self._on_end is not None:
                self._on_end(job)
        except Exception:
            logger.exception("a request could not be counted")


def _numbered(put: Callable[[int, Delta], None], index: int) -> Callable[[Delta], None]:
    return lambda piece: put(index, piece)
