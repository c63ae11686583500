"""Reading requests: off the event loop, and bounded before the work begins."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import JSON, ROUTES, error_of, refused, served

from ngramspec.server.bodies import json_shape

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\[{,\n€'),
    lambda each: st.lists(each) | st.dictionaries(st.text(alphabet='k"\\[{,'), each),
)


def shape_of(value):
    """How many values a value is, its arrays and objects, and their names."""
    if not isinstance(value, list | dict):
        return 1, 0, 0
    names = len(value) if isinstance(value, dict) else 0
    found = [shape_of(each) for each in (value.values() if names else value)]
    values, opened, named = [*zip(*found, strict=True)] or [()] * 3
    return 1 + sum(values), 1 + sum(opened), names + sum(named)


@given(VALUES, st.booleans())
def test_the_counts_bound_what_is_parsed(value, ascii):
    values, *others = json_shape(json.dumps(value, ensure_ascii=ascii).encode())
    most, containers, names = shape_of(value)
    assert others == [containers, names]
    assert most <= values <= most + containers  # an empty one counts as if it had an entry


@pytest.mark.parametrize("route", ROUTES)
def test_bodies_are_parsed_and_orders_made_in_worker_threads(model, tokenizer, monkeypatch, route):
    from ngramspec.server import bodies, llama, openai_api, service

    threads = []

    def watched(module, name):
        function = getattr(module, name)

        def called(*args, **named):
            threads.append(threading.get_ident())
            return function(*args, **named)

        monkeypatch.setattr(module, name, called)

    for module, name in (
        (bodies, "from_json"),
        *((openai_api, name) for name in ("completion_ids", "chat_prompt")),
        (llama, "encoded"),
        (service, "answers_of"),
        *((reply, "whole") for reply in (openai_api.OpenAIReply, llama.LlamaReply)),
    ):
        watched(module, name)
    with served(model, tokenizer) as client:
        assert client.post(route, json=ROUTES[route]).status_code == 200
        loop = client.portal.call(threading.get_ident)
    assert len(threads) >= 2
    assert loop not in threads


ENORMOUS = [
    ("/v1/completions", {"prompt": ["x"] * 9, "n": 2}, "n"),
    ("/v1/completions", {"prompt": ["x"] * 17}, "prompt"),
    ("/v1/completions", {"prompt": [[1]] * 17}, "prompt"),
    *(
        (route, ROUTES[route] | {name: count}, name)
        for route in ROUTES
        for name in ["n" if route.startswith("/v1") else "n_cmpl"]
        for count in (17, 10**9)
    ),
]


@pytest.mark.parametrize(("route", "body", "param"), ENORMOUS)
def test_too_many_answers_are_refused_before_one_is_made(client, monkeypatch, route, body, param):
    from ngramspec.server import engine

    def made(**given):
        raise AssertionError("a completion request was made")

    monkeypatch.setattr(engine, "CompletionRequest", made)
    service = client.app.state.service
    monkeypatch.setattr(service, "encode_prompt", lambda *given: pytest.fail("a text was encoded"))
    error, given = refused(client, route, body, param), body.get(param)
    assert ("128" if given == 10**9 else "16") in error["message"]  # the bound
    assert str(len(given) if isinstance(given, list) else given) in error["message"]


LISTS = [
    ("/v1/completions", '{"prompt": [%s]}', "null"),
    ("/v1/completions", '{"prompt": [%s]}', '"a"'),
    ("/v1/completions", '{"prompt": [%s]}', "[]"),
    ("/v1/chat/completions", '{"messages": [%s]}', "1"),
    ("/v1/chat/completions", '{"messages": [%s]}', '{"role": "user", "content": "x"}'),
    ("/v1/completions", '{"prompt": "x", "ngramspec": {"stores": [%s]}}', '"a"'),
    ("/v1/completions", '{"prompt": "x", "unknown": [%s]}', "1"),
    ("/v1/completions", '{"prompt": "x", "unknown": {%s}}', '"a":1'),
    ("/infill", '{"input_prefix": "x", "input_suffix": "y", "input_extra": [%s]}', '{"text": ""}'),
]


@pytest.mark.parametrize(("route", "form", "entry"), LISTS, ids=str)
def test_a_body_of_too_many_values_is_not_parsed(client, monkeypatch, route, form, entry):
    from ngramspec.server import bodies

    limits = client.app.state.service.settings.limits
    most = max(limits.body // (128 if entry[0] in "[{" else 16), 1024)
    if entry == '"a":1':
        most = max(limits.body // 64, 1024)
    monkeypatch.setattr(bodies, "from_json", lambda raw: pytest.fail("the body was parsed"))
    body = form % ",".join([entry] * (most + 1))
    assert len(body) < limits.body
    message = error_of(client.post(route, content=body, headers=JSON))["message"]
    assert f"at most {most} " in message
    assert "JSON" in message


def test_every_list_and_dictionary_of_the_schemas_has_a_bound():
    """Lists of token ids are bounded by the context, and the number of values of a body."""
    from ngramspec.server import bodies as types

    unbounded = []

    def walk(schema, path):
        if isinstance(schema, list):
            for each in schema:
                walk(each, path)
        elif isinstance(schema, dict):
            if schema.get("type") == "array" and "maxItems" not in schema:
                tokens = schema["items"].get("exclusiveMaximum") == 2**31
                unbounded.extend([] if tokens else [path])
            named = schema.get("patternProperties") or schema.get("propertyNames")
            if named and "maxProperties" not in schema:
                unbounded.append(path)
            for name, each in schema.items():
                walk(each, f"{path}.{name}")

    for kind in (types.CompletionBody, types.ChatBody, types.InfillBody):
        walk(kind.model_json_schema(), kind.__name__)
    assert unbounded == []


def test_text_that_cannot_fit_is_not_encoded(model, tokenizer):
    with served(model, tokenizer) as client:
        service = client.app.state.service
        service.encode_prompt = lambda *given: pytest.fail("a text was encoded")
        longest = max(map(len, tokenizer.get_vocab()))
        most = service.context * longest
        chat = {"messages": [{"role": "user", "content": "x" * most}]}
        for route, body, param in (
            ("/v1/completions", {"prompt": "x" * (most + 1)}, "prompt"),
            ("/v1/completions", {"prompt": ["a", "x" * (most + 1)]}, "prompt"),
            ("/v1/completions", {"prompt": "x" * most, "suffix": "y"}, "prompt"),
            ("/completion", {"prompt": "x" * (most + 1)}, "prompt"),
            ("/v1/chat/completions", chat, "messages"),
        ):
            if isinstance(body.get("prompt"), list):
                service.encode_prompt = lambda text, *given: [1] * len(text)
            error = refused(client, route, body, param)
            assert error["code"] == "context_length_exceeded"
            assert f"at most {most} characters" in error["message"]


def test_the_longest_text_of_a_context_is_encoded(model):
    """The bound refuses no text that fits: a token of many characters, as often as it fits."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    merged = {"a": 0, "aa": 1, "aaaa": 2, "a" * 8: 3}
    merges = [("a", "a"), ("aa", "aa"), ("aaaa", "aaaa")]
    backend = Tokenizer(models.BPE(merged, merges))
    with served(model, PreTrainedTokenizerFast(tokenizer_object=backend)) as client:
        service = client.app.state.service
        ids = service.encode("a" * 8 * (service.context - 1))
        assert ids == [3] * (service.context - 1)
        body = {"prompt": "a" * 8 * service.context}
        message = refused(client, "/v1/completions", body, "prompt")["message"]
        assert f"fewer than {service.context} tokens, got" in message


@pytest.mark.parametrize("large", [False, True])
def test_requests_wait_for_worker_threads_up_to_a_bound(large):
    import anyio

    from ngramspec.server.bodies import THREADS, Reading
    from ngramspec.server.responses import ApiError
    from ngramspec.server.settings import Limits

    async def flood():
        reading, leave, running = Reading(Limits(waiting=3)), threading.Event(), []
        request = SimpleNamespace(state=SimpleNamespace(large=large))

        def work():
            running.append(threading.get_ident())
            assert leave.wait(60)

        statuses = []

        async def ask():
            try:
                await reading.run(request, work)
                statuses.append(200)
            except ApiError as error:
                statuses.append(error.status)
                leave.set()

        async with anyio.create_task_group() as group:
            for _ in range(7):
                group.start_soon(ask)
        return statuses, len(set(running)), await reading.run(request, lambda: "free")

    statuses, threads, after = anyio.run(flood)
    most = THREADS[large]
    assert sorted(statuses) == [200] * (most + 3) + [429] * (4 - most)
    assert threads <= most
    assert after == "free"


def test_large_bodies_have_a_thread_to_themselves(model, tokenizer, monkeypatch):
    """A small request is answered while as many large ones as there may be are read."""
    from ngramspec.server import bodies

    with served(model, tokenizer) as client:
        monkeypatch.setitem(client.app.state.service.reading.held, True, 10**6)
        padding = {"user": "x", "unknown": "y" * bodies.LARGE_BODY_BYTES}
        busy = client.post("/v1/completions", json={"prompt": "x", **padding})
        assert error_of(busy, 429)["code"] == "queue_full"
        assert int(busy.headers["Retry-After"]) > 0
        assert client.post("/v1/completions", json={"prompt": "x"}).status_code == 200


@pytest.mark.parametrize("field", ["ngramspec", "logit_bias", "unknown"])
def test_an_object_of_very_many_members_is_refused_before_it_is_validated(field):
    from ngramspec.server.bodies import MAX_MEMBERS, json_value
    from ngramspec.server.responses import ApiError
    from ngramspec.server.settings import Limits

    def body(members):
        return json.dumps({field: {str(each): 1 for each in range(members)}}).encode()

    assert len(json_value(body(MAX_MEMBERS), Limits(), "the body")[field]) == MAX_MEMBERS
    with pytest.raises(ApiError, match=f"at most {MAX_MEMBERS} members in an object, got"):
        json_value(body(MAX_MEMBERS + 1), Limits(), "the body")
