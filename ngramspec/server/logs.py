"""Keeps the texts of requests out of the log."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

# The loggers of a server's process that log exceptions.
LOGGERS = ("ngramspec", "ngramspec.server", "ngramspec.stores", "uvicorn.error")


class TypeName(str):
    """The name of an exception's type, whose ``repr`` has no quotes."""

    __slots__ = ()
    __repr__ = str.__str__


class WithoutMessages(logging.Filter):
    """Removes the messages of exceptions from log records, as they can quote a request.

    The types of exceptions and the lines of code where they were raised remain. A message that
    cannot quote a request is logged as ``str(error)``.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Change a record; all records pass."""
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text, record.exc_info = outline(record.exc_info[1]), None
        record.msg = named(record.msg)
        if isinstance(record.args, tuple):
            record.args = tuple(named(each) for each in record.args)
        elif record.args is not None:
            record.args = {key: named(each) for key, each in record.args.items()}
        return True


def named(value: object) -> object:
    """The name of an exception's type; other values are returned as they are."""
    return TypeName(type(value).__name__) if isinstance(value, BaseException) else value


def outline(error: BaseException, seen: frozenset[int] = frozenset()) -> str:
    """The traceback of an exception, and of those that it was caused by, without messages."""
    seen |= {id(error)}
    before = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    parts = [] if before is None or id(before) in seen else [outline(before, seen), ""]
    frames = "".join(traceback.format_tb(error.__traceback__))
    parts.append(f"Traceback (most recent call last):\n{frames}{type(error).__name__}")
    if isinstance(error, BaseExceptionGroup):
        parts += [outline(each, seen) for each in error.exceptions]
    return "\n".join(parts)


@contextmanager
def private_logs() -> Iterator[None]:
    """Log exceptions without their messages, see ``WithoutMessages``."""
    own = WithoutMessages()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(own)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(own)
