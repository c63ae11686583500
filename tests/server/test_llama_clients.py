"""What llama.cpp's clients ask apart from completions.

llama.vscode reads ``default_generation_settings.n_ctx`` of ``/props`` and the length of ``tokens``
of ``/tokenize``: src/language-model-token-limits.ts and countTextTokens in src/llama-server.ts at
https://github.com/ggml-org/llama.vscode (commit 3938fb3, August 2026). The fields are described in
tools/server/README.md at https://github.com/ggml-org/llama.cpp (commit 00dc805).
"""

from __future__ import annotations

import pytest
from serving import CHAT, VOCAB, ask, served

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]
VIEWS = ["/health", "/v1/health", "/v1/models", "/models", "/v1/models/tiny", "/props", "/metrics"]


def test_props_tell_the_context_and_the_template(client):
    found = client.get("/props", params={"model": "tiny", "autoload": "false"}).json()
    assert found["default_generation_settings"]["n_ctx"] == 512
    assert found["default_generation_settings"]["params"]["temperature"] == 0.8
    assert found["default_generation_settings"]["params"]["top_k"] == 40
    assert found["total_slots"] == 8
    assert found["chat_template"] == CHAT
    assert found["model_alias"] == found["model_path"] == "tiny"


def test_a_text_is_tokenized(client, tokenizer):
    text = "ab<|fim_prefix|>"
    sent = {"content": text, "add_special": False, "parse_special": True}  # as llama.vscode
    assert ask(client, "/tokenize", **sent) == {"tokens": [65, 66, 96]}
    assert ask(client, "/tokenize", content=text)["tokens"] == [65, 66, 96]
    letters = ask(client, "/tokenize", content=text, parse_special=False, add_special=True)
    assert letters["tokens"] == [ord(each) - 32 for each in text]
    assert ask(client, "/tokenize", content="") == {"tokens": []}
    for body, param in (
        ({}, "content"),
        ({"content": 3}, "content"),
        ({"content": "a" * ((1 << 18) + 1)}, "content"),
        ({"content": "a", "with_pieces": 3}, "with_pieces"),
    ):
        answer = client.post("/tokenize", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_tokens_piece_is_text_or_bytes(client, model):
    found = ask(client, "/tokenize", content="a<|fim_prefix|>", with_pieces=True)
    assert found["tokens"] == [{"id": 65, "piece": "a"}, {"id": 96, "piece": "<|fim_prefix|>"}]
    service = client.app.state.service
    known = service.bytes_of
    try:
        service.bytes_of = lambda token, hidden: b"\xc3" if token == 65 else None
        found = ask(client, "/tokenize", content="ab", with_pieces=True)
    finally:
        service.bytes_of = known
    assert found["tokens"] == [{"id": 65, "piece": [195]}, {"id": 66, "piece": "b"}]


def test_tokens_become_text_again(client):
    text = "ab<|fim_prefix|>"
    tokens = ask(client, "/tokenize", content=text)["tokens"]
    assert ask(client, "/detokenize", tokens=tokens) == {"content": text}
    assert ask(client, "/detokenize", tokens=[]) == {"content": ""}
    for tokens in ([VOCAB], [-1], ["a"], None):
        answer = client.post("/detokenize", json={"tokens": tokens})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tokens")


def test_llama_cpps_short_names_of_openais_routes_are_answered(client):
    chat = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 2, "temperature": 0}
    answers = [ask(client, f"{place}/chat/completions", **chat) for place in ("", "/v1")]
    assert answers[0]["choices"] == answers[1]["choices"]
    assert client.get("/models").json() == client.get("/v1/models").json()


def test_a_beginning_is_added_where_it_is_asked_for(model, tokenizer):
    import copy

    from tokenizers.processors import TemplateProcessing

    own = copy.deepcopy(tokenizer)
    own.bos_token = "#"
    template = TemplateProcessing(single="# $A", special_tokens=[("#", own.bos_token_id)])
    own.backend_tokenizer.post_processor = template
    with served(model, own) as client:
        bos = own.bos_token_id
        for parse in (False, True):
            found = ask(client, "/tokenize", content="a", add_special=True, parse_special=parse)
            assert found["tokens"] == [bos, 65]
            found = ask(client, "/tokenize", content="a", parse_special=parse)
            assert found["tokens"] == [65]
        assert client.get("/props").json()["bos_token"] == "#"


@pytest.mark.parametrize("path", VIEWS)
def test_head_is_get_without_the_body(client, path):
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    assert client.head("/v1/completions").status_code == 405


def test_only_health_needs_no_key(model):
    with served(model, keys={"ann": "key"}) as client:
        for path in VIEWS:
            expected = 200 if path.endswith("health") else 401
            assert client.get(path).status_code == client.head(path).status_code == expected
        assert client.post("/tokenize", json={"content": "a"}).status_code == 401
        key = {"Authorization": "Bearer key"}
        assert client.get("/props", headers=key).status_code == 200
