"""Sessions around another one pass on whatever they do not change."""

from __future__ import annotations

from ngramspec.drafters.base import DraftSession, ForwardingSession


def test_every_method_is_passed_on():
    """But ``propose_after``, whose default asks ``propose``, which the session may have changed."""
    methods = {name for name in vars(DraftSession) if not name.startswith("_")}
    assert methods - vars(ForwardingSession).keys() == {"propose_after"}


class Noted:
    """Answers every call with its name and arguments."""

    def __getattr__(self, name):
        return lambda *given, **named: (name, given, named)


def test_arguments_and_answers_are_passed_on():
    session = ForwardingSession(Noted())
    assert session.propose(3, "cost", tree=True) == ("propose", (3, "cost"), {"tree": True})
    assert session.sizeof() == ("sizeof", (), {})
