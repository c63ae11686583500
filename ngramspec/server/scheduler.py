"""Choose which jobs run next: completions before chats."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ngramspec.server.errors import queue_full
from ngramspec.server.job import Job

MAX_TURNS_BEFORE_CHAT = 16  # turns of completions before a waiting chat gets one; not tuned


class Scheduler:
    """Waiting jobs and active jobs. Not thread-safe.

    Each turn is one forward: a chunk of one job's prompt, or a step, shared by all answers that are
    being decoded if ``joint``. Completions (``CompletionRequest.first``) take turns among
    themselves. Chats run while there are no completions, and once after every MAX_TURNS_BEFORE_CHAT
    turns of completions. At most ``active`` jobs take turns, and ``waiting`` ones wait for that.
    """

    def __init__(self, active: int, waiting: int, *, joint: bool = True) -> None:
        self._joint = joint
        self._most_active, self._most_waiting = active, waiting
        self._waiting: deque[Job] = deque()
        self._active: dict[bool, deque[Job]] = {True: deque(), False: deque()}
        self._owed = 0  # turns of completions since the last turn of a chat

    def __len__(self) -> int:
        return len(self._waiting) + self.active

    @property
    def active(self) -> int:
        """Number of jobs that take turns."""
        return sum(map(len, self._active.values()))

    @property
    def waiting(self) -> int:
        """Number of jobs that wait."""
        return len(self._waiting)

    def add(self, jobs: Sequence[Job], session: tuple[str, str] | None = None) -> None:
        """Add all jobs of one request and cancel older jobs of the same user and session.

        If not all of the jobs fit, none is added, and an ApiError is raised.
        """
        for job in self._all():
            if session is not None and job.session == session:
                job.cancelled = True
        active = sum(not job.cancelled for job in self._all())
        if active + len(jobs) > self._most_active + self._most_waiting:
            raise queue_full()
        for job in jobs:
            job.session = session
        self._waiting.extend(jobs)

    def next(self) -> list[Job]:
        """The jobs of the next turn: several share a forward; empty if none is ready."""
        self._fill()
        cancelled = next((job for job in self._all() if job.cancelled), None)
        if cancelled is not None:
            return [cancelled]
        firsts, others = self._active[True], self._active[False]
        if firsts and others:
            self._owed += 1
        chat = others and (not firsts or self._owed > MAX_TURNS_BEFORE_CHAT)
        if chat:
            self._owed = 0
        return self._turn_of(others if chat else firsts)

    def _turn_of(self, jobs: deque[Job]) -> list[Job]:
        """The next ready job and all that can join its step, moved to the end of the queue."""
        first = next((job for job in jobs if job.ready), None)
        if first is None:
            return []
        taken = [first]
        if self._joint and first.joins:
            taken += [job for job in jobs if job is not first and job.ready and job.joins]
        for job in taken:
            jobs.remove(job)
        jobs.extend(taken)
        return taken

    def remove(self, job: Job) -> None:
        """Remove a job that has ended."""
        for jobs in (self._waiting, *self._active.values()):
            if job in jobs:
                jobs.remove(job)

    def cancel_all(self) -> None:
        """Cancel every job."""
        for job in self._all():
            job.cancelled = True

    def _all(self) -> list[Job]:
        return [*self._waiting, *self._active[True], *self._active[False]]

    def _fill(self) -> None:
        """Activate waiting jobs while there is room, completions first."""
        while self._waiting and self.active < self._most_active:
            job = next((job for job in self._waiting if job.request.first), self._waiting[0])
            self._waiting.remove(job)
            self._active[job.request.first].append(job)
