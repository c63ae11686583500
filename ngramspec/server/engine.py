"""The thread that runs the model, one forward at a time, and the answers it sends to a client."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import Request

from ngramspec.errors import UnsupportedError
from ngramspec.server.auth import Client
from ngramspec.server.errors import ApiError, shutting_down
from ngramspec.server.job import (
    CANCELLED,
    CompletionRequest,
    Delta,
    Job,
    ModelRunner,
    turn_together,
)
from ngramspec.server.scheduler import Scheduler

logger = logging.getLogger("ngramspec.server")
T = TypeVar("T")


class Engine:
    """Runs jobs in a separate thread; its methods may be called from any thread.

    ``active`` and ``waiting``: see Scheduler. ``on_end`` is called in the engine's thread with
    every job that has ended. Other threads may only read the counts and bytes of ``pool``.
    ``closing``: whether new jobs are refused.
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
        """Start the answers of one client request; an ApiError if they are refused.

        ``put`` receives each answer's index and its deltas, in the engine's thread. A newer request
        of the same ``session``, a user and a session's name, ends this one.
        """
        jobs: list[Job] = []
        for index, request in enumerate(requests):
            same = next((job for job in jobs if job.request.prompt is request.prompt), None)
            jobs.append(Job(request, partial(put, index), after=same))
        with self._changed:
            if self.closing:
                raise shutting_down()
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


class Answers:
    """The answers of one client request, as a stream of deltas. Used in one event loop.

    Creating it starts them; an ApiError says why they are refused.
    """

    def __init__(
        self, engine: Engine, requests: Sequence[CompletionRequest], client: Client
    ) -> None:
        loop = asyncio.get_running_loop()
        self._engine = engine
        deltas: asyncio.Queue[tuple[int, Delta]] = asyncio.Queue()
        self._deltas = deltas
        session = None if client.session is None else (client.user, client.session)

        def put(index: int, delta: Delta) -> None:
            loop.call_soon_threadsafe(deltas.put_nowait, (index, delta))  # no cycle through self

        self.jobs = engine.submit(requests, put, session)
        self._left = len(self.jobs)  # answers whose last delta was not read

    def cancel(self) -> None:
        """Cancel the answers that have not ended."""
        if not all(job.ended for job in self.jobs):
            self._engine.cancel(self.jobs)

    @property
    def ended(self) -> bool:
        """Whether all answers have ended."""
        return self._left == 0

    async def deltas(self) -> AsyncIterator[tuple[int, Delta]]:
        """Each answer's index and deltas, until all answers have ended.

        Leaving the iteration early cancels the answers that have not ended. An ApiError says that
        an answer failed, or was ended by a newer request of its session or by the shutdown.
        """
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

    async def whole(self, request: Request) -> list[list[Delta]]:
        """All deltas of each answer; generation stops when the client disconnects."""
        try:
            return await while_connected(request, self._collect())
        finally:
            self.cancel()

    async def _collect(self) -> list[list[Delta]]:
        found: list[list[Delta]] = [[] for _ in self.jobs]
        async for index, delta in self.deltas():
            found[index].append(delta)
        return found


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine, and cancel it with an ApiError if the client closes the connection."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "the client closed the connection")
        return await working
    finally:
        for task in (working, watching):
            task.cancel()


async def _gone(request: Request) -> None:
    """Wait until the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
