"""Every route of a tiny server, against plain ``generate`` and OpenAI's and llama.cpp's forms."""

from __future__ import annotations

import gc
import json
from functools import partial
from typing import ClassVar

import numpy as np
import pytest
import torch
from conftest import tiny_llama
from serving import HI, VOCAB, ask, events, parts_of, plain, refused, served, shown, text_of

from ngramspec import Corpus
from ngramspec.server import engine, service
from ngramspec.server.engine import answers_of, logprobs_of
from ngramspec.server.settings import SharedText

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
pytest_plugins = ["server_fixtures"]
GREEDY = {"max_tokens": 24, "temperature": 0}
PROMPT = "def hello(name):\n    return name + 'hello"


def test_a_keystroke_reuses_the_cache_and_says_so(client, model, tokenizer):
    text = "while True: typing"
    ask(client, prompt=text, **GREEDY)
    answer = ask(client, prompt=text + "X", ngramspec={"usage": True}, **GREEDY)
    assert text_of(answer) == plain(model, tokenizer, text + "X", 24)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= len(text)
    speculation = answer["usage"]["ngramspec"]
    assert speculation["reused_tokens"] >= len(text)
    assert speculation["target_calls"] <= 23
    assert set(speculation["sources"]) <= {"copy", "ngram", "unigram"}
    choice = answer["choices"][0]["speculative_decoding_stats"]
    steps = choice["num_spec_steps"]
    assert 0 < steps <= speculation["target_calls"]
    assert choice["num_draft_tokens"] == speculation["drafted"]
    accepted = choice["num_accepted_draft_tokens"]
    assert choice["mean_acceptance_length"] == 1 + accepted / steps
    without = ask(client, prompt=text, **GREEDY)
    assert "ngramspec" not in without["usage"]
    assert "speculative_decoding_stats" not in without["choices"][0]


def test_several_prompts_and_answers_come_in_order(client, model, tokenizer):
    prompts = ["first prompt", "second one"]
    answer = ask(client, prompt=prompts, n=2, **GREEDY)
    expected = [plain(model, tokenizer, each, 24) for each in prompts for _ in range(2)]
    assert [text_of(answer, index) for index in range(4)] == expected
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    ids = [tokenizer(each)["input_ids"] for each in prompts]
    assert text_of(ask(client, prompt=ids, **GREEDY), 1) == expected[2]


def test_sampled_answers_follow_their_seed(client, model, tokenizer):
    warped = {"temperature": 1.2, "top_p": 0.9}
    asked = {"prompt": PROMPT, "max_tokens": 24, "seed": 3, "n": 2, "logprobs": 1, **warped}
    first, second = ask(client, **asked), ask(client, **asked)
    texts = [text_of(first, index) for index in range(2)]
    assert texts == [text_of(second, index) for index in range(2)]
    assert texts[0] != texts[1]
    for choice in first["choices"]:
        tops = choice["logprobs"]["top_logprobs"]
        assert all(map(dict.__contains__, tops, choice["logprobs"]["tokens"]))
        assert max(map(len, tops)) == 2, "the best token, and the chosen one"
    settings = {"do_sample": True, "top_k": 0, **warped}
    for index, text in enumerate(texts):
        torch.manual_seed(3 + index)
        assert text == plain(model, tokenizer, PROMPT, 24, **settings)


@pytest.mark.parametrize("stream", [False, True])
def test_text_ends_before_a_stop_string(client, model, tokenizer, stream):
    whole = plain(model, tokenizer, PROMPT, 24)
    stop = whole[9:12]
    body = {"prompt": PROMPT, "stop": ["not there", stop], **GREEDY}
    parts = parts_of(client, "/v1/completions", stream, **body)
    assert "".join(text_of(each) for each in parts) == whole[: whole.index(stop)]
    assert parts[-1]["choices"][0]["finish_reason"] == "stop"
    if not stream:
        assert parts[0]["usage"]["completion_tokens"] == whole.index(stop) + len(stop)


@pytest.mark.parametrize("stream", [False, True])
def test_log_probabilities_are_the_targets(client, model, tokenizer, stream):
    parts = parts_of(client, "/v1/completions", stream, prompt=PROMPT, logprobs=3, **GREEDY)
    text, choices = "".join(map(text_of, parts)), [part["choices"][0] for part in parts]
    assert text == plain(model, tokenizer, PROMPT, 24)
    found = {
        name: [row for choice in choices for row in choice["logprobs"][name]]
        for name in choices[0]["logprobs"]
    }
    assert shown("".join(found["tokens"])) == text
    sizes = [len(shown(each)) for each in found["tokens"]]
    assert found["text_offset"] == [sum(sizes[:at]) for at in range(len(sizes))]
    ids = torch.tensor([tokenizer(PROMPT + "".join(found["tokens"]))["input_ids"]])
    with torch.no_grad():
        scores = torch.log_softmax(model(ids).logits[0, len(PROMPT) - 1 : -1], -1)
    expected = scores.gather(1, ids[0, len(PROMPT) :, None])[:, 0]
    own = torch.tensor(found["token_logprobs"])
    torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-3)
    best = torch.tensor([max(top.values()) for top in found["top_logprobs"]])
    torch.testing.assert_close(best, scores.max(-1).values, rtol=1e-3, atol=1e-3)
    assert [len(top) for top in found["top_logprobs"]] == [3] * 24


def test_the_prompt_is_repeated_before_its_answer(client, model, tokenizer):
    whole = PROMPT + plain(model, tokenizer, PROMPT, 24)
    for stream in (False, True):
        parts = parts_of(client, "/v1/completions", stream, prompt=PROMPT, echo=True, **GREEDY)
        assert "".join(map(text_of, parts)) == whole
    assert text_of(ask(client, prompt=PROMPT, echo=True, max_tokens=0)) == PROMPT


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_log_probabilities_keep_no_rows_of_the_vocabulary(client, monkeypatch, route):
    """As many tensors with a row of scores are alive late in an answer as early in it."""
    alive = []

    def counted(logits, tokens, top):
        gc.collect()
        tensors = [each for each in gc.get_objects() if type(each) is torch.Tensor]
        alive.append(sum(each.shape[-1:] == (VOCAB,) for each in tensors))
        return logprobs_of(logits, tokens, top)

    monkeypatch.setattr(engine, "logprobs_of", counted)
    chat = HI | {"logprobs": True, "top_logprobs": 2}
    body = {"prompt": PROMPT, "logprobs": 2} if route == "/v1/completions" else chat
    gc.freeze()  # what is there already is not counted
    try:
        ask(client, route, **body, max_tokens=60, temperature=0)
    finally:
        gc.unfreeze()
    assert len(alive) > 5
    assert max(alive) - min(alive) <= 24, "a step has a draft's rows, an answer has more"


def test_penalties_and_biases_count(client, model, tokenizer):
    token = tokenizer("Q")["input_ids"][0]
    biased = ask(client, prompt=PROMPT, logit_bias={str(token): 100}, **GREEDY)
    assert text_of(biased) == "Q" * 24
    both = ask(client, prompt=PROMPT, logit_bias={str(token): 10}, frequency_penalty=2, **GREEDY)
    assert 0 < text_of(both).count("Q") < 24

    class Penalty:
        def __call__(self, ids, scores):
            counts = torch.bincount(ids[0, len(PROMPT) :], minlength=VOCAB)
            return scores - 0.7 * counts - 1.1 * (counts > 0)

    expected = plain(model, tokenizer, PROMPT, 24, logits_processor=[Penalty()])
    penalties = {"frequency_penalty": 0.7, "presence_penalty": 1.1}
    assert text_of(ask(client, prompt=PROMPT, **penalties, **GREEDY)) == expected
    repeated = plain(model, tokenizer, PROMPT, 24, repetition_penalty=1.7)
    assert text_of(ask(client, prompt=PROMPT, repetition_penalty=1.7, **GREEDY)) == repeated


def test_a_suffix_is_filled_in_by_the_models_own_tokens(client, model, tokenizer):
    answer = ask(client, prompt="before", suffix="after", **GREEDY)
    whole = "<|fim_prefix|>before<|fim_suffix|>after<|fim_middle|>"
    ends = list(range(96, 101))  # the family's tokens
    assert text_of(answer) == plain(model, tokenizer, whole, 24, eos_token_id=ends)
    by_ids = ask(client, prompt=tokenizer(whole)["input_ids"], **GREEDY)
    assert text_of(by_ids) == text_of(answer)


def test_reference_text_is_drafted_from_and_changes_nothing(client, model, tokenizer):
    expected = plain(model, tokenizer, PROMPT, 24)
    extras = {"reference": PROMPT + expected, "usage": True}
    answer = ask(client, prompt=PROMPT, ngramspec=extras, **GREEDY)
    assert text_of(answer) == expected
    speculation = answer["usage"]["ngramspec"]
    assert speculation["accepted"] + speculation["prefill_accepted"] > 10


@pytest.mark.parametrize("parts", [False, True])
def test_a_prediction_is_drafted_from_and_counted(client, model, tokenizer, parts):
    expected = plain(model, tokenizer, PROMPT, 24)
    content = [{"type": "text", "text": each} for each in (expected[:9], expected[9:])]
    given = {"type": "content", "content": content if parts else expected}
    answer = ask(client, prompt=PROMPT, prediction=given, **GREEDY)
    assert text_of(answer) == expected
    details = answer["usage"]["completion_tokens_details"]
    # The prefill drafts the beginning of the prediction. Each step adds one token by itself.
    assert details["accepted_prediction_tokens"] > 12
    wrong = {"type": "content", "content": expected[:12] + "zq~zq~zq~zq~"}
    details = ask(client, prompt=PROMPT, prediction=wrong, **GREEDY)["usage"]
    details = details["completion_tokens_details"]
    assert 0 < details["accepted_prediction_tokens"] <= 12
    assert details["rejected_prediction_tokens"] >= 1
    usage = ask(client, prompt=PROMPT, prediction=None, **GREEDY)["usage"]
    assert set(usage["completion_tokens_details"].values()) == {0}


def test_each_prompts_answer_begins_with_the_prediction(client, model, tokenizer):
    texts = ["the first of two", "and another one"]
    whole = [plain(model, tokenizer, each, 24) for each in texts]
    given = {"type": "content", "content": whole[1]}
    answer = ask(client, prompt=texts, prediction=given, **GREEDY)
    assert [text_of(answer, index) for index in (0, 1)] == whole
    assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] >= 18


def test_the_window_of_a_next_edit_is_predicted(client, model, tokenizer, monkeypatch):
    asked = []

    def noted(sampling, n, **fields):
        asked.append(fields["reference"])
        return answers_of(sampling, n, **fields)

    monkeypatch.setattr(service, "answers_of", noted)
    begin, end = "<|editable_region_start|>\n", "<|editable_region_end|>\nthe rest of it"
    texts = [begin + "some code\n" + end, "another prompt"]
    answer = ask(client, prompt=texts, **GREEDY)
    for index, each in enumerate(texts):
        assert text_of(answer, index) == plain(model, tokenizer, each, 24)
    assert asked[1] is None
    assert tokenizer.decode(asked[0]) == texts[0][-16:] + begin + "some code\n"
    ask(client, prompt=texts[0], prediction={"type": "content", "content": ""}, **GREEDY)
    assert asked[2] is None


def test_one_request_can_do_without_drafts(model, tokenizer):
    shared = SharedText(1 << 20, (), tokenizer)
    with served(model, tokenizer, shared=shared, limits={"pool": 0}) as client:

        def drafted(speculate):
            extras = {"speculate": speculate, "usage": True, "reference": "x" * 50}
            answer = ask(client, prompt=PROMPT, ngramspec=extras, **GREEDY)
            assert text_of(answer) == plain(model, tokenizer, PROMPT, 24)
            counts = answer["timings"]
            assert 0 <= counts["draft_n_accepted"] <= counts["draft_n"]
            found = answer["usage"]["ngramspec"]
            assert counts["draft_n"] == found["drafted"] + found["prefill_drafted"]
            assert found["target_calls"] == 23 or speculate
            return counts["draft_n"]

        assert drafted(False) == 0
        assert shared["anyone"].statistics().added == 0
        assert drafted(True) > 0
        assert shared["anyone"].statistics().added == 24


@pytest.mark.parametrize("with_usage", [False, True])
@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_the_last_event_has_timings_and_each_answers_last_one_its_statistics(
    client, route, with_usage
):
    body = {"n": 2, "stream": True, "stream_options": {"include_usage": with_usage}, **GREEDY}
    body |= {"ngramspec": {"usage": True}, **(HI if "chat" in route else {"prompt": PROMPT})}
    *others, last = parts = events(client.post(route, json=body).text)
    ends = [each["choices"][0] for each in parts if "speculative_decoding_stats" in str(each)]
    assert sorted(each["index"] for each in ends) == [0, 1]
    assert [each["finish_reason"] for each in ends] == ["length"] * 2
    assert not any("timings" in each for each in others)
    assert last["timings"]["predicted_n"] == 2 * 24
    assert last["timings"]["draft_n"] >= last["timings"]["draft_n_accepted"]
    assert ("usage" in last) == with_usage
    body |= {"stream": False}
    assert client.post(route, json=body).json()["timings"]["predicted_n"] == 2 * 24


def accepted_tokens(client, expected, key, **extras):
    """The accepted draft tokens of a completion, whose text is the expected one."""
    body = {"prompt": PROMPT, "ngramspec": {"usage": True, **extras}, **GREEDY}
    answer = client.post("/v1/completions", json=body, headers={"X-Api-Key": key}).json()
    assert text_of(answer) == expected
    found = answer["usage"]["ngramspec"]
    return found["accepted"] + found["prefill_accepted"]


def test_stores_are_chosen_by_name_and_shared_ones_by_user(model, tokenizer, tmp_path):
    expected = plain(model, tokenizer, PROMPT, 24)
    texts = {"right": PROMPT + expected, "other": "nothing of use"}
    stores = {}
    for name, text in texts.items():
        ids = np.array(tokenizer(text)["input_ids"], np.int32)
        stores[name] = Corpus.build([ids], tmp_path / f"{name}.ngc")

    class Shared:
        named: ClassVar[list[str]] = []

        def __getitem__(self, name):
            self.named.append(name)
            return stores["right" if name == "ann/mine" else "other"]

    keys = {"ann": "key-a", "bob": "key-b"}
    with served(model, tokenizer, keys=keys, corpora=stores, shared=Shared()) as client:
        accepted = partial(accepted_tokens, client, expected)
        assert accepted("key-a") > 10
        assert accepted("key-a", stores=["right"]) > 10
        assert accepted("key-b", stores=[]) < 10
        assert accepted("key-b", stores=["other"], namespace="mine") < 10
        assert accepted("key-a", stores=[], namespace="mine") > 10
    assert Shared.named == ["ann", "ann", "bob", "bob/mine", "ann/mine"]


def test_what_a_user_was_told_is_drafted_from_later_and_for_nobody_else(model, tokenizer):
    keys = {"ann": "key-a", "bob": "key-b"}
    shared = SharedText(1 << 20, keys, tokenizer)
    with served(model, tokenizer, keys=keys, shared=shared, limits={"pool": 0}) as client:
        expected = plain(model, tokenizer, PROMPT, 24)
        accepted = partial(accepted_tokens, client, expected)
        assert accepted("key-a") < 10
        assert accepted("key-a") > 10
        assert accepted("key-b") < 10
        assert accepted("key-a", namespace="other") < 10


def test_a_chat_uses_the_models_template(client, model, tokenizer):
    messages = [
        {"role": "system", "content": "be short"},
        {"role": "user", "content": [{"type": "text", "text": each} for each in ("hi", "!")]},
    ]
    expected = plain(model, tokenizer, "system:be short;user:hi!;assistant:", 24)
    answer = ask(client, "/v1/chat/completions", messages=messages, model="tiny", **GREEDY)
    assert answer["choices"][0]["message"]["content"] == expected
    assert answer["choices"][0]["message"]["role"] == "assistant"
    body = {"messages": messages, "stream": True, "logprobs": True, "top_logprobs": 2, **GREEDY}
    parts = events(client.post("/v1/chat/completions", json=body).text)
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0]["role"] == "assistant"
    assert "".join(delta.get("content") or "" for delta in deltas) == expected
    assert parts[-1]["choices"][0]["finish_reason"] == "length"
    tokens = [part["choices"][0].get("logprobs") or {"content": []} for part in parts]
    assert shown("".join(each["token"] for one in tokens for each in one["content"])) == expected


def test_a_response_format_is_kept(client):
    pytest.importorskip("xgrammar")
    schema = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    body = HI | {"max_tokens": 90, "temperature": 0}
    body |= {"response_format": form, "logit_bias": {"0": -100, "95": -100}}  # no spaces for ever
    with served(tiny_llama(vocab=VOCAB, eos_token_id=100)) as ending:
        answer = ask(ending, "/v1/chat/completions", **body)["choices"][0]
    assert json.loads(answer["message"]["content"]).keys() == {"a"}
    assert answer["finish_reason"] == "stop"
    refused(client, "/v1/chat/completions", body, "response_format")


def test_models_health_and_metrics(client):
    assert client.get("/health").json() == {"status": "ok"}
    models = client.get("/v1/models").json()
    assert [each["id"] for each in models["data"]] == ["tiny"]
    assert models["data"][0]["fill_in_the_middle"] == "Qwen2.5-Coder"
    assert client.get("/v1/models/tiny").json()["id"] == "tiny"
    assert client.get("/v1/models/other").status_code == 404
    page = client.get("/metrics").text
    values = dict(line.rsplit(" ", 1) for line in page.splitlines() if line[0] != "#")
    assert any(name.startswith("ngramspec_requests_total{") for name in values)
    assert float(values["ngramspec_tokens_total"]) > 100
    assert float(values["ngramspec_reused_tokens_total"]) > 10
    assert float(values["ngramspec_time_to_first_token_seconds_count"]) > 5
    assert float(values["ngramspec_target_calls_total"]) > 10
    assert 'ngramspec_draft_tokens_total{outcome="accepted",source="copy"}' in values
    assert float(values["ngramspec_cache_pool_bytes"]) > 0


def test_texts_of_keys_stay_apart(model, tokenizer, caplog):
    keys = {"ann": "secret-of-ann", "bob": "secret-of-bob"}
    with served(model, tokenizer, keys=keys) as client:

        def reused_by(user):
            body = {"prompt": PROMPT, "ngramspec": {"usage": True}, **GREEDY}
            headers = next(headers_of[user])
            answer = client.post("/v1/completions", json=body, headers=headers).json()
            return answer["usage"]["ngramspec"]["reused_tokens"]

        # Either header tells the user.
        headers_of = {
            user: iter([{"X-Api-Key": key}, {"Authorization": f"Bearer {key}"}])
            for user, key in keys.items()
        }
        reused = [reused_by(user) for user in ("ann", "bob", "ann", "bob")]
        assert reused[:2] == [0, 0]
        assert min(reused[2:]) > 0
        page = client.get("/metrics", headers={"Authorization": "Bearer secret-of-bob"}).text
        assert '="ann' not in page
        assert "hello" not in page
    assert "hello" not in caplog.text
    assert json.dumps(PROMPT) not in caplog.text
