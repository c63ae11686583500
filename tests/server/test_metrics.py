"""What a server logs of a failure: where it was, and nothing of what was asked or answered."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from serving import served

import ngramspec
from ngramspec.decoding.row import Row
from ngramspec.server.metrics import LOGGERS, private_logs

llama = pytest.importorskip("ngramspec.server.llama", reason="pip install 'ngramspec[serve]'")

pytest_plugins = ["server_fixtures"]
SECRET = "what was asked"


def failing(*arguments, **named):
    """Fails with a message that quotes a request, because of an error that does so, too."""
    try:
        raise KeyError(SECRET)
    except KeyError as error:
        raise ValueError(f"cannot read {SECRET!r}") from error


def test_exceptions_keep_their_messages_where_nothing_is_served(caplog):
    logger = logging.getLogger("ngramspec")
    group = ExceptionGroup(SECRET, [OSError(SECRET)])
    group.add_note(SECRET)
    with private_logs():
        logger.warning("%s, %r, %s", group, group, "as it is", exc_info=group)
    assert SECRET not in caplog.text
    assert "ExceptionGroup, ExceptionGroup, as it is\nTraceback" in caplog.text
    assert "OSError" in caplog.text
    logger.warning("%r", ValueError(SECRET))
    assert f"ValueError('{SECRET}')" in caplog.text


def test_an_answer_that_fails_is_logged_without_its_text(client, monkeypatch, caplog):
    monkeypatch.setattr(client.app.state.service.model, "forward", failing)
    answer = client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 4})
    assert answer.status_code == 500
    assert "an answer failed" in caplog.text
    for known in ("KeyError", "ValueError", 'raise ValueError(f"cannot read {SECRET!r}")'):
        assert known in caplog.text
    assert SECRET not in caplog.text


def test_an_unexpected_error_is_counted_and_has_a_request_id(model, monkeypatch):
    monkeypatch.setattr(llama, "props", failing)
    with served(model) as client:
        client._transport.raise_server_exceptions = False
        answer = client.get("/props")
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
        assert answer.headers["X-Request-Id"].startswith("req_")
        counted = client.get("/metrics").text
        assert 'ngramspec_requests_total{route="/props",status="500"} 1.0' in counted


def test_a_drafter_that_fails_is_logged_without_its_text(client, monkeypatch, caplog):
    monkeypatch.setattr(Row, "start", failing)
    answer = client.post("/v1/completions", json={"prompt": SECRET, "max_tokens": 4})
    assert answer.status_code == 200
    assert "failed, the step has no draft: ValueError\nTraceback" in caplog.text
    assert SECRET not in caplog.text


def test_every_logger_of_a_server_is_known():
    package = Path(ngramspec.__file__).parent
    named = {
        name
        for each in package.rglob("*.py")
        for name in re.findall(r'getLogger\("([\w.]+)"\)', each.read_text(encoding="utf-8"))
    }
    others = {"ngramspec.watch", "vllm.ngramspec"}  # of other processes
    assert named - others <= set(LOGGERS)
