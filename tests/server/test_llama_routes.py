"""llama.cpp's routes: their fields, their clients, and the requests of editors."""

from __future__ import annotations

import json

import pytest
import torch
from conftest import tiny_llama
from serving import CHAT as TEMPLATE
from serving import HI, VOCAB, ask, events, parts_of, plain, refused, served, shown, text_of
from tiny_tokenizers import with_fallback

from ngramspec.server.text import TokenBytes

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]


PROMPT = "def hello(name):\n    return name + 'hello"
GREEDY = {"prompt": PROMPT, "n_predict": 24, "temperature": 0}
CHAT = HI | {"max_tokens": 8, "temperature": 0}
ROUTES = {
    "/completion": GREEDY,
    "/infill": {"input_prefix": "a", "input_suffix": "b", "n_predict": 8},
    "/v1/completions": {"prompt": PROMPT, "max_tokens": 8, "temperature": 0},
    "/v1/chat/completions": CHAT,
}
# The defaults that tools/server/README.md at https://github.com/ggml-org/llama.cpp (commit 00dc805)
# documents, of all fields that this server does not read from each route's requests.
DEFAULTS = {
    **{"dynatemp_range": 0.0, "dynatemp_exponent": 1.0, "typical_p": 1, "n_indent": 0, "n_keep": 0},
    **{"repeat_last_n": 64, "repeat_penalty": 1.0, "dry_multiplier": 0.0, "dry_base": 1.75},
    **{"dry_allowed_length": 2, "dry_penalty_last_n": 64, "xtc_probability": 0.0},
    **{"dry_sequence_breakers": ["\n", ":", '"', "*"], "xtc_threshold": 0.1, "mirostat": 0},
    **{"mirostat_tau": 5.0, "mirostat_eta": 0.1, "grammar": "", "logit_bias": [], "n_probs": 0},
    **{"min_keep": 0, "t_max_predict_ms": 0, "id_slot": -1, "cache_prompt": True, "lora": []},
    **{"return_tokens": False, "timings_per_token": False, "return_progress": False, "stop": []},
    **{"post_sampling_probs": False, "response_fields": [], "ignore_eos": False, "n_cmpl": 1},
}


def content(answer):
    for key in ("model", "timings", "id", "created", "tokens_cached", "usage"):
        answer.pop(key, None)
    return answer


@pytest.fixture(scope="module")
def ending():
    """A server whose model can end its answers."""
    with served(tiny_llama(vocab=VOCAB, eos_token_id=100)) as client:
        yield client


@pytest.mark.parametrize("route", ROUTES)
def test_a_field_at_its_default_and_null_count_as_absent(client, route):
    from ngramspec.server.app import BODY_ROUTES

    fields = [*BODY_ROUTES[route].kind.model_fields, *DEFAULTS, "max_tokenz"]
    nulls = {name: None for name in fields if name not in ROUTES[route]}
    names = ("stores", "reference", "namespace", "usage", "speculate")
    nulls["ngramspec"] = dict.fromkeys(names)
    if route.startswith("/v1"):
        nulls["stream_options"] = {"include_usage": None, "include_obfuscation": None}
    expected = content(ask(client, route, **ROUTES[route]))
    for more in (nulls, DEFAULTS):
        assert content(ask(client, route, **more, **ROUTES[route])) == expected


def test_null_in_a_message_or_a_schema_is_told_apart(client, ending):
    said = {"role": "assistant", "content": "x"}
    answer, other = (
        content(ask(client, "/v1/chat/completions", **CHAT | {"messages": [each]}))
        for each in (said, said | {"name": None, "tool_calls": None})
    )
    assert answer == other
    pytest.importorskip("xgrammar")
    answer = ask(ending, "/completion", json_schema={"const": None}, **GREEDY)
    assert answer["content"] == "null"


@pytest.mark.parametrize("route", ROUTES)
def test_a_sampler_that_the_server_lacks_is_refused_with_the_value_that_it_supports(client, route):
    for name, value, message in (
        ("mirostat", 2, "only 0"),
        ("dry_multiplier", 0.8, "only 0"),
        ("typical_p", 0.9, "only 1"),
        ("typical_p", True, "only 1"),
        ("lora", [{"id": 0, "scale": 1}], "only []"),
    ):
        error = refused(client, route, ROUTES[route] | {name: value}, name)
        assert message in error["message"]


@pytest.mark.parametrize("route", ROUTES)
def test_the_penalties_window_is_refused_only_where_it_would_change_the_text(client, route):
    name = "repetition_penalty" if route.startswith("/v1") else "repeat_penalty"
    for window, penalty, status in ((64, 1, 200), (64, 1.2, 400), (-1, 1.2, 200), (0, 1, 200)):
        body = ROUTES[route] | {"repeat_last_n": window, name: penalty}
        answer = client.post(route, json=body)
        assert answer.status_code == status, answer.text
        assert status == 200 or answer.json()["error"]["param"] == "repeat_last_n"


@pytest.mark.parametrize("mode", ["refuse", "warn"])
def test_a_constraint_is_never_ignored(model, mode):
    with served(model, unknown_fields=mode) as client:
        for route in ("/v1/completions", "/v1/chat/completions"):
            for name, value in (
                ("grammar", 'root ::= "a"'),
                ("json_schema", {"type": "object"}),
                ("guided_choice", ["a"]),
            ):
                error = refused(client, route, ROUTES[route] | {name: value}, name)
                assert ("'response_format'" in error["message"]) == ("chat" in route)
            assert client.post(route, json=ROUTES[route] | {"grammar": ""}).status_code == 200
        form = {"type": "json_object", "schema": {"type": "object"}}  # llama.cpp's
        body = CHAT | {"response_format": form}
        refused(client, "/v1/chat/completions", body, "response_format.schema")


def test_more_tokens_than_the_context_has_room_for_are_cut(model, tokenizer):
    """Agents send large limits with every request."""
    count = 20
    with served(model, tokenizer, limits={"context": len(PROMPT) + count}) as client:
        answer = ask(client, "/completion", **GREEDY | {"n_predict": 10**6})
        assert answer["generation_settings"]["n_predict"] == count
        assert answer["content"] == plain(model, tokenizer, PROMPT, count)
        for route, name in (
            ("/v1/completions", "max_tokens"),
            ("/v1/chat/completions", "max_tokens"),
            ("/v1/chat/completions", "max_completion_tokens"),
        ):
            answer = ask(client, route, **ROUTES[route] | {"max_tokens": None, name: 10**6})
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["total_tokens"] == len(PROMPT) + count


@pytest.mark.parametrize("route", ["/completion", "/infill"])
def test_other_names_of_fields_have_their_effect_unless_the_first_name_is_given(client, route):
    body = {**ROUTES[route], "temperature": 0, "n_predict": None}
    own = {"n_predict": 5, "n_cmpl": 2, "n_probs": 3}

    def answers(given):
        """Whole answers; of their log-probabilities, which are rounded, only the shape."""
        for each in ask(client, route, **body | given):
            rows = [len(row["top_logprobs"]) for row in each["completion_probabilities"]]
            settings = each["generation_settings"] | {"t_max_predict_ms": 0}
            more = {"completion_probabilities": rows, "generation_settings": settings}
            yield content(each) | more

    expected = list(answers(own))
    assert [each["completion_probabilities"] for each in expected] == [[3] * 5] * 2
    idle = {"t_max_predict_ms": -1, "verbose": True, "stream_options": {"include_usage": True}}
    for given in (
        {"max_tokens": 5, "n": 2, "logprobs": 3, **idle},
        {"max_completion_tokens": 5, "max_tokens": 7, "n_cmpl": 2, "n": 1, "logprobs": 3},
        {**own, "max_completion_tokens": 7, "max_tokens": 9, "n": 1, "logprobs": 1},
    ):
        assert list(answers(given)) == expected


def test_many_stop_strings_are_allowed_and_empty_ones_are_none(client, model, tokenizer):
    expected = plain(model, tokenizer, PROMPT, 24)
    stops = [*(f"not there {n}" for n in range(99)), "", expected[5:7]]
    answer = ask(client, "/completion", stop=stops, **GREEDY)
    assert answer["content"] == expected[: expected.index(expected[5:7])]
    assert (answer["stop_type"], answer["stopping_word"]) == ("word", expected[5:7])
    assert ask(client, "/completion", stop=["", ""], **GREEDY)["content"] == expected
    for route, body in (("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", CHAT)):
        body = {"max_tokens": 24, "temperature": 0} | body
        whole = ask(client, route, **body)["choices"]
        assert ask(client, route, stop="", **body)["choices"] == whole


def test_a_top_p_of_zero_keeps_one_token(client):
    greedy = ask(client, "/completion", **GREEDY)["content"]
    sampled = GREEDY | {"temperature": 1.5, "top_k": 0, "min_p": 0, "seed": 3, "top_p": 0}
    assert ask(client, "/completion", **sampled)["content"] == greedy
    openai = {"prompt": PROMPT, "max_tokens": 24, "temperature": 1.5, "top_p": 0}
    assert ask(client, **openai)["choices"][0]["text"] == greedy


def test_samplers_that_are_not_listed_are_off(client):
    given = {"temperature": 0, "top_k": 7, "top_p": 0.5, "min_p": 0.2, "repeat_penalty": 1.5}
    body = {"prompt": PROMPT, "n_predict": 4, "samplers": ["top_k", "dry"]} | given
    settings = ask(client, "/completion", **body)["generation_settings"]
    off = {"temperature": 1.0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0}
    assert settings.items() >= {"top_k": 7, "samplers": ["top_k"], **off}.items()
    infill = {"input_prefix": "a", "input_suffix": "b"} | body
    assert ask(client, "/infill", **infill)["generation_settings"].items() >= given.items()


def test_no_response_fields_are_all_and_settings_can_be_picked(client):
    whole = ask(client, "/completion", **GREEDY)
    assert ask(client, "/completion", response_fields=[], **GREEDY).keys() == whole.keys()
    names = ["content", "generation_settings/top_k", "generation_settings/none"]
    answer = ask(client, "/completion", response_fields=names, top_k=3, **GREEDY)
    assert answer == {"content": whole["content"], "generation_settings/top_k": 3}


def test_an_answer_tells_its_settings(client):
    given = {"top_k": 7, "top_p": 0.5, "stop": ["~~"], "seed": 5, "n_cmpl": 2}
    answers = ask(client, "/completion", **GREEDY | given | {"temperature": 0.7})
    for index, answer in enumerate(answers):
        settings = answer["generation_settings"]
        expected = {"temperature": 0.7, "top_k": 7, "top_p": 0.5, "stop": ["~~"], "min_p": 0.05}
        expected |= {"n_predict": 24, "mirostat": 0, "seed": 5 + index, "n_ctx": 512}
        assert settings.items() >= {**expected, "model": "tiny", "n_probs": 0}.items()


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_tells_whether_it_has_a_line_end(client, stream):
    line_end = 95
    for bias, expected in ((50, True), (-50, False)):
        body = GREEDY | {"logit_bias": [[line_end, bias]], "frequency_penalty": 100}  # at most one
        parts = parts_of(client, "/completion", stream, **body)
        assert "".join(part["content"] for part in parts).startswith("\n") == expected
        assert parts[-1]["has_new_line"] is expected


def test_a_stream_has_the_tokens_of_its_text(client, tokenizer):
    whole = ask(client, "/completion", return_tokens=True, **GREEDY)
    assert ask(client, "/completion", **GREEDY)["tokens"] == []
    parts = parts_of(client, "/completion", True, **GREEDY)
    assert [token for part in parts for token in part["tokens"]] == whole["tokens"]
    for part in parts:
        assert shown(tokenizer.decode(part["tokens"])) == part["content"]
    held = parts_of(client, "/completion", True, n_indent=9, **GREEDY)
    count = held[-1]["tokens_predicted"]
    assert [token for part in held for token in part["tokens"]] == whole["tokens"][:count]


@pytest.mark.parametrize("stream", [False, True])
def test_probabilities_are_the_targets(client, model, tokenizer, stream):
    parts = parts_of(client, "/completion", stream, **GREEDY, n_probs=2)
    rows = [row for part in parts for row in part["completion_probabilities"]]
    text = "".join(row["token"] for row in rows)
    assert "".join(part["content"] for part in parts) == shown(text)
    ids = torch.tensor([tokenizer(PROMPT)["input_ids"] + [row["id"] for row in rows]])
    with torch.no_grad():
        scores = torch.log_softmax(model(ids).logits[0, len(PROMPT) - 1 : -1], -1)
    for row, score in zip(rows, scores, strict=True):
        best, at = score.topk(2)
        assert [each["id"] for each in row["top_logprobs"]] == at.tolist()
        found = torch.tensor([each["logprob"] for each in row["top_logprobs"]])
        torch.testing.assert_close(found, best, rtol=1e-3, atol=1e-3)
        assert row["logprob"] == row["top_logprobs"][0]["logprob"]
        assert bytes(row["bytes"]).decode() == shown(row["token"])
    assert "completion_probabilities" not in ask(client, "/completion", **GREEDY)


def test_tokens_keep_their_spaces_beside_their_probabilities(model):
    tokenizer = with_fallback()
    space = tokenizer.convert_tokens_to_ids("▁")
    wide = tiny_llama(vocab=len(tokenizer))
    with served(wide, tokenizer) as client:
        body = {"prompt": "a b c", "n_predict": 3, "logit_bias": [[space, 1000]], "n_probs": 1}
        rows = ask(client, "/completion", **body)["completion_probabilities"]
    assert [(row["token"], row["bytes"]) for row in rows] == [(" ", [32])] * 3


def test_biases_are_of_ids_and_of_the_tokens_of_a_text(client, tokenizer):
    q = tokenizer("Q")["input_ids"][0]

    def text(bias):
        return ask(client, "/completion", logit_bias=bias, **GREEDY)["content"]

    assert text([[q, 1000]]) == text([["Q", 1000]]) == text({"Q": 1000}) == "Q" * 24
    assert text({str(q): 1000}) == "Q" * 24
    greedy = text([])
    assert text([["Q", 2000], [q, -1000]]) == "Q" * 24, "they add up"
    banned = text([[greedy, False]])
    assert not set(banned) & set(greedy)
    assert text([["Q", 1000], [q, False]]) == greedy, "it is not chosen"


def test_a_grammar_or_a_schema_constrains_the_text(ending):
    pytest.importorskip("xgrammar")
    grammar = {"grammar": 'root ::= "yes" | "no"'}
    for route, body in (("/completion", GREEDY), ("/infill", ROUTES["/infill"])):
        answer = ask(ending, route, **body | grammar)
        assert answer["content"] in ("yes", "no")
        assert answer["stop_type"] == "eos"
        assert answer["generation_settings"]["grammar"] == grammar["grammar"]
    schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 1}
    parts = parts_of(ending, "/completion", True, json_schema=schema, **GREEDY)
    (found,) = json.loads("".join(part["content"] for part in parts))
    assert isinstance(found, bool)
    both = ask(ending, "/completion", json_schema=schema, **grammar, **GREEDY)
    assert both["content"] in ("yes", "no"), "as in llama.cpp"


def test_a_grammar_that_cannot_be_used_is_refused_with_the_reason(ending, client):
    pytest.importorskip("xgrammar")
    for body, param, words in (
        ({"grammar": "root"}, "grammar", "the grammar cannot be used: EBNF"),
        ({"grammar": "x" * 70_000}, "grammar", "at most 65536 characters, got 70000"),
        ({"json_schema": {"type": 1}}, "json_schema", "the schema cannot be used"),
        ({"grammar": 'root ::= "a"', "ignore_eos": True}, "ignore_eos", "together with grammar"),
    ):
        error = refused(ending, "/completion", GREEDY | body, param)
        assert words in error["message"]
    answer = client.post("/completion", json=GREEDY | {"grammar": 'root ::= "a"'})
    assert "no token that ends a text" in answer.json()["error"]["message"]


VIEWS = ["/health", "/v1/health", "/v1/models", "/models", "/v1/models/tiny", "/props", "/metrics"]


def test_props_tell_the_context_and_the_template(client):
    found = client.get("/props", params={"model": "tiny", "autoload": "false"}).json()
    assert found["default_generation_settings"]["n_ctx"] == 512
    assert found["default_generation_settings"]["params"]["temperature"] == 0.8
    assert found["default_generation_settings"]["params"]["top_k"] == 40
    assert found["total_slots"] == 8
    assert found["chat_template"] == TEMPLATE
    assert found["model_alias"] == found["model_path"] == "tiny"


def test_a_text_is_tokenized_and_its_tokens_become_text_again(client):
    text = "ab<|fim_prefix|>"
    sent = {"content": text, "add_special": False, "parse_special": True}  # as llama.vscode
    assert ask(client, "/tokenize", **sent) == {"tokens": [65, 66, 96]}
    assert ask(client, "/tokenize", content=text)["tokens"] == [65, 66, 96]
    assert ask(client, "/detokenize", tokens=[65, 66, 96]) == {"content": text}
    assert ask(client, "/detokenize", tokens=[]) == {"content": ""}
    letters = ask(client, "/tokenize", content=text, parse_special=False, add_special=True)
    assert letters["tokens"] == [ord(each) - 32 for each in text]
    assert ask(client, "/tokenize", content="") == {"tokens": []}
    for body, param in (
        ({}, "content"),
        ({"content": 3}, "content"),
        ({"content": "a" * ((1 << 18) + 1)}, "content"),
        ({"content": "a", "with_pieces": 3}, "with_pieces"),
    ):
        refused(client, "/tokenize", body, param)
    for tokens in ([VOCAB], [-1], ["a"], None):
        refused(client, "/detokenize", {"tokens": tokens}, "tokens")


def test_a_tokens_piece_is_text_or_bytes(client, monkeypatch):
    found = ask(client, "/tokenize", content="a<|fim_prefix|>", with_pieces=True)
    assert found["tokens"] == [{"id": 65, "piece": "a"}, {"id": 96, "piece": "<|fim_prefix|>"}]
    known = {65: b"\xc3", 66: b"b"}
    monkeypatch.setattr(TokenBytes, "__call__", lambda self, token: known[token])
    found = ask(client, "/tokenize", content="ab", with_pieces=True)
    assert found["tokens"] == [{"id": 65, "piece": [195]}, {"id": 66, "piece": "b"}]


def test_llama_cpps_short_names_of_openais_routes_are_answered(client):
    answers = [ask(client, f"{place}/chat/completions", **CHAT) for place in ("", "/v1")]
    assert answers[0]["choices"] == answers[1]["choices"]
    texts = [ask(client, route, **GREEDY)["content"] for route in ("/completion", "/completions")]
    assert texts[0] == texts[1]
    assert client.get("/models").json() == client.get("/v1/models").json()


@pytest.mark.parametrize("path", VIEWS)
def test_head_is_get_without_the_body(client, path):
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code == 200
    assert head.content == b""
    assert head.headers["content-type"] == got.headers["content-type"]
    assert client.head("/v1/completions").status_code == 405


def test_only_health_needs_no_key(model):
    with served(model, keys={"ann": "key"}) as client:
        for path in (*VIEWS, "/openapi.json"):
            expected = 200 if path.endswith("health") else 401
            assert client.get(path).status_code == client.head(path).status_code == expected
        assert client.post("/tokenize", json={"content": "a"}).status_code == 401
        key = {"Authorization": "Bearer key"}
        assert client.get("/props", headers=key).status_code == 200


FILE = {"text": "def sum(x):\n    return 1\n", "filename": "other.py"}
EDITOR = {  # that both of llama.cpp's editors send
    "input_prefix": "import os\n\n",
    "input_suffix": "\n    return total\n",
    "prompt": "def total(xs):\n    to",
    **{"id_slot": 0, "n_predict": 24, "top_k": 40, "stream": False, "cache_prompt": True},
    **{"samplers": ["top_k", "top_p", "infill"], "t_max_prompt_ms": 500},
    "t_max_predict_ms": 100000,
}
# What llama.vim sends, and what it reads of the answer: autoload/llama.vim, s:default_config and
# llama#fim, at https://github.com/ggml-org/llama.vim (commit a1c8e6e, January 2026). Only
# n_predict (there 128) and t_max_predict_ms (there 1000) differ: a short answer, without a clock.
TIMINGS = ("n", "ms", "per_token_ms", "per_second")
LLAMA_VIM = EDITOR | {
    "input_extra": [FILE | {"time": [1764, 25]}],
    **{"stop": [], "n_indent": 0, "top_p": 0.90, "model": ""},  # of its default configuration
    "response_fields": [
        *("content", "truncated", "tokens_cached"),
        *(f"timings/{part}_{figure}" for part in ("prompt", "predicted") for figure in TIMINGS),
    ],
}
WHOLE = (
    "<|repo_name|>repository\n<|file_sep|>other.py\ndef sum(x):\n    return 1\n<|file_sep|>\n"
    "<|fim_prefix|>import os\n\ndef total(xs):\n    to<|fim_suffix|>\n    return total\n"
    "<|fim_middle|>"
)
# What it sends when its chunks have changed, so that they are read: s:ring_update.
WARM_UP = {
    **{"id_slot": 0, "stream": False, "cache_prompt": True, "samplers": [], "model": ""},
    **{"input_prefix": "", "input_suffix": "", "input_extra": LLAMA_VIM["input_extra"]},
    **{"prompt": "", "n_predict": 0, "temperature": 0.0, "response_fields": [""]},
    **{"t_max_prompt_ms": 1, "t_max_predict_ms": 1},
}
# What llama.vscode sends: createRequestPayload in src/llama-server.ts at
# https://github.com/ggml-org/llama.vscode (commit 3938fb3, August 2026), shorter in the same way.
VSCODE_FILE = FILE | {"time": 1764000000000}
LLAMA_VSCODE = EDITOR | {"input_extra": [VSCODE_FILE], "n_cmpl": 3, "top_p": 0.99}


def test_llama_vim_is_answered(client, model, tokenizer):
    assert client.post("/infill", json=WARM_UP).json() == {}
    answer = ask(client, "/infill", **LLAMA_VIM)
    assert set(answer) == set(LLAMA_VIM["response_fields"])
    assert answer["content"] == plain(model, tokenizer, WHOLE, 24)
    assert answer["timings/predicted_n"] == 24
    warm = len(tokenizer(WHOLE.partition("<|fim_prefix|>")[0])["input_ids"])
    assert answer["timings/prompt_n"] <= len(tokenizer(WHOLE)["input_ids"]) - warm


def test_llama_vscode_is_answered(client, model, tokenizer):
    answers = ask(client, "/infill", **LLAMA_VSCODE)
    assert len(answers) == 3
    for answer in answers:
        assert answer["content"] == plain(model, tokenizer, WHOLE, 24)
        assert answer["stop"] is True
        assert answer["stop_type"] == "limit"
        assert answer["tokens_predicted"] == 24


# What Continue sends: its template and stop strings (core/autocomplete/templating), its
# temperature (core/autocomplete/CompletionProvider.ts) and its fields (_legacystreamComplete in
# core/llm/llms/OpenAI.ts) at https://github.com/continuedev/continue (commit d0a3c0b, June 2026).
# max_tokens is 4096 unless the configuration says less.
CONTINUE = {
    "model": "tiny",
    "max_tokens": 24,
    "temperature": 0.01,
    "stream": True,
    "stop": [
        *("<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>"),
        *("<|repo_name|>", "<|file_sep|>", "<|im_start|>", "<|im_end|>", "/src/"),
        *("#- coding: utf-8", "```"),
    ],
    "prompt": "<|repo_name|>project\n<|file_sep|>other.py\ndef sum(x):\n    return 1\n"
    "<|file_sep|>own.py\n<|fim_prefix|>import os\n<|fim_suffix|>\nend<|fim_middle|>",
}


def test_continues_requests_are_answered(client, model, tokenizer):
    """Continue fills a model's template itself, and streams."""
    answer = client.post("/v1/completions", json=CONTINUE | {"seed": 3})
    parts = events(answer.text)
    torch.manual_seed(3)
    settings = {"do_sample": True, "temperature": 0.01, "top_k": 0}
    expected = plain(model, tokenizer, CONTINUE["prompt"], 24, **settings)
    assert "".join(map(text_of, parts)) == expected
    assert answer.text.endswith("data: [DONE]\n\n")
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
