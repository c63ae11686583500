"""Whose turn it is: completions before chats, and who is ended by whom.

Prompts are read in turn, a chunk at a time. All answers that are being decoded take their steps
together, in one forward, where the model allows that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from ngramspec.server.job import Job

PATIENCE = 16  # turns of completions after which a waiting chat has one


class QueueFullError(Exception):
    """There are as many requests waiting as there may be."""


class Scheduler:
    """Jobs that wait and jobs that take turns. Not safe for several threads at once.

    Completions (``CompletionRequest.first``) take turns among themselves; chats do while there
    are no
    completions, and every PATIENCE turns, so that they end at some time. Each turn is one forward.

    Args:
        active: jobs that take turns.
        waiting: jobs that wait for a place among them.
        joint: whether steps of several jobs can share a forward.
    """

    def __init__(self, active: int, waiting: int, *, joint: bool = True) -> None:
        self._joint = joint
        self._most_active, self._most_waiting = active, waiting
        self._waiting: deque[Job] = deque()
        self._active: dict[bool, deque[Job]] = {True: deque(), False: deque()}
        self._sessions: dict[tuple[str, str], list[Job]] = {}
        self._owed = 0  # turns of completions since a chat had one

    def __len__(self) -> int:
        return len(self._waiting) + self.active

    @property
    def active(self) -> int:
        """Jobs that take turns."""
        return sum(map(len, self._active.values()))

    @property
    def waiting(self) -> int:
        """Jobs that wait."""
        return len(self._waiting)

    def add(self, jobs: Sequence[Job], session: tuple[str, str] | None = None) -> None:
        """Add the jobs of one request; older ones of the same session are cancelled.

        Args:
            jobs: the answers of one request: all of them, or none.
            session: user and session.

        Raises:
            QueueFullError: they would not fit.
        """
        if session is not None:
            for job in self._sessions.get(session, ()):
                job.cancelled = True
            self._sessions[session] = list(jobs)
        going = sum(not job.cancelled for job in self._all())
        if going + len(jobs) > self._most_active + self._most_waiting:
            self._forget(session)
            raise QueueFullError
        self._waiting.extend(jobs)

    def next(self) -> list[Job]:
        """Whose turn it is: a job, or several whose steps can share a forward; none: nobody's."""
        self._fill()
        cancelled = next((job for job in self._all() if job.cancelled), None)
        if cancelled is not None:
            return [cancelled]
        firsts, others = self._active[True], self._active[False]
        if firsts and others:
            self._owed += 1
        chat = others and (not firsts or self._owed > PATIENCE)
        if chat:
            self._owed = 0
        return self._turn_of(others if chat else firsts)

    def _turn_of(self, jobs: deque[Job]) -> list[Job]:
        """The next of these jobs that is ready, with all that can join its step; they go last."""
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
        """Take out a job that has ended."""
        for jobs in (self._waiting, *self._active.values()):
            if job in jobs:
                jobs.remove(job)
        for session, jobs_of in list(self._sessions.items()):
            if job in jobs_of:
                jobs_of.remove(job)
                self._forget(session)

    def cancel_all(self) -> None:
        """Cancel every job."""
        for job in self._all():
            job.cancelled = True

    def _forget(self, session: tuple[str, str] | None) -> None:
        """Forget a session without jobs."""
        jobs = self._sessions.get(session, []) if session is not None else []
        if session is not None and all(job.ended or job not in self._all() for job in jobs):
            self._sessions.pop(session, None)

    def _all(self) -> list[Job]:
        return [*self._waiting, *self._active[True], *self._active[False]]

    def _fill(self) -> None:
        """Give free places to those that wait, completions first."""
        while self._waiting and self.active < self._most_active:
            job = next((job for job in self._waiting if job.order.first), self._waiting[0])
            self._waiting.remove(job)
            self._active[job.order.first].append(job)
