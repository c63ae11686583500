"""The thread that runs the model, one forward at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from ngramspec.server.job import CompletionRequest, Delta, Job, ModelRunner, turn_together
from ngramspec.server.scheduler import QueueFullError, Scheduler

logger = logging.getLogger("ngramspec.server")


class Engine:
    """Runs jobs in a separate thread; its methods may be called from any thread.

    ``active`` and ``waiting``: see Scheduler. ``on_end`` is called in the engine's thread with
    every job that has ended.

    Attributes:
        pool: the caches; other threads may only read its counts and bytes.
        closing: whether new jobs are refused.
    """

    def __init__(
        self, runner: ModelRunner, active: int, waiting: int, on_end: Callable[[Job], None]
    ) -> None:
        self._runner, self._on_end = runner, on_end
        self.pool, self.closing = runner.pool, False
        self._scheduler = Scheduler(active, waiting, joint=runner.steps.why_not is None)
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="ngramspec-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(
        self,
        requests: Sequence[CompletionRequest],
        put: Callable[[int, Delta], None],
        session: tuple[str, str] | None = None,
    ) -> list[Job]:
        """Start the answers of one client request.

        Args:
            requests: what each answer must be.
            put: receives each answer's index and its deltas, in the engine's thread.
            session: user and session; a newer request of the same session ends this one.

        Raises:
            QueueFullError: too many jobs are waiting, or the engine is closing.
        """
        jobs: list[Job] = []
        for index, request in enumerate(requests):
            same = next((job for job in jobs if job.request.prompt is request.prompt), None)
            jobs.append(Job(request, partial(put, index), after=same))
        with self._changed:
            if self.closing:
                raise QueueFullError
            self._scheduler.add(jobs, session)
            self._changed.notify()
        return jobs

    def cancel(self, jobs: Sequence[Job]) -> None:
        """End jobs; the next turn is theirs."""
        with self._changed:
            for job in jobs:
                job.cancelled = True
            self._changed.notify()

    @property
    def load(self) -> tuple[int, int]:
        """Number of active jobs and number of waiting jobs."""
        with self._changed:
            return self._scheduler.active, self._scheduler.waiting

    def close(self) -> None:
        """Refuse new jobs, cancel all existing ones and wait for the current forward."""
        with self._changed:
            self.closing = True
            self._scheduler.cancel_all()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                jobs = self._scheduler.next()
                while not jobs:
                    if self.closing:
                        return
                    self._changed.wait()
                    jobs = self._scheduler.next()
                alone = len(self._scheduler) == 1
            if len(jobs) > 1:
                turn_together(jobs, self._runner)
            else:
                jobs[0].turn(self._runner, alone=alone)
            for job in jobs:
                if job.ended:
                    self._leave(job)

    def _leave(self, job: Job) -> None:
        with self._changed:
            self._scheduler.remove(job)
        try:
            self._on_end(job)
        except Exception:
            logger.exception("a request could not be counted")
