"""Programs around a model, and forms that its answers must have.

lm-format-enforcer passes a function to ``generate``. guidance runs its own decode loop over
``lm._interpreter.engine.model_obj`` and never calls ``generate``. dspy queries a server.
"""

from __future__ import annotations

import re
from unittest.mock import patch

import pytest
from conftest import tiny_llama
from frameworks.usual_call import check, tiny
from serving import ThreadWorker, listening
from tiny_tokenizers import over_bytes
from transformers import PreTrainedTokenizerBase

import ngramspec
from ngramspec import Speculator

PROMPTS = ["One, two, three. One, two,", "abcabcabcab"]
TEXT = {"type": "string", "maxLength": 20}
SCHEMA = {"type": "object", "properties": {"answer": TEXT}, "required": ["answer"]}
SCHEMA["additionalProperties"] = False


@pytest.mark.parametrize("form", ["schema", "pattern"])
def test_lm_format_enforcer_allows_tokens_after_a_prefix(monkeypatch, form):
    formats = pytest.importorskip("lmformatenforcer", reason="make test-frameworks")
    name = "transformers.tokenization_utils.PreTrainedTokenizerBase"  # 0.11.3 expects it there
    monkeypatch.setattr(name, PreTrainedTokenizerBase, raising=False)
    from lmformatenforcer.integrations import transformers as enforcer

    model, tokenizer = tiny()
    tokens = enforcer.build_token_enforcer_tokenizer_data(tokenizer)
    pattern = "(one|two|three)(, (one|two|three)){3,6}[.]"

    def answers(prompts):
        schema = form == "schema"
        parser = formats.JsonSchemaParser(SCHEMA) if schema else formats.RegexParser(pattern)
        allowed = enforcer.build_transformers_prefix_allowed_tokens_fn(tokens, parser)
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
        settings = {"max_new_tokens": 40, "do_sample": False}
        out = model.generate(**inputs, prefix_allowed_tokens_fn=allowed, **settings)
        texts = tokenizer.batch_decode(out[:, inputs.input_ids.shape[1] :])
        assert all(re.match(r'\s*{\s*"answer"' if schema else pattern, each) for each in texts)
        return texts

    check(model, lambda: [answers([each]) for each in PROMPTS], repeated=10)
    check(model, lambda: answers(PROMPTS), limits=["rows advance together"], repeated=10)


@pytest.mark.filterwarnings("ignore:.*past_key_values:FutureWarning")
def test_guidance_runs_a_loop_of_its_own(monkeypatch):
    guidance = pytest.importorskip("guidance", reason="make test-frameworks")
    from transformers.utils import generic

    monkeypatch.setattr(generic.logger, "warning_once", lambda *_: None)  # of outputs' old names
    tokenizer = over_bytes()
    model = tiny_llama(vocab=len(tokenizer))

    def text():
        lm = guidance.models.Transformers(model, tokenizer, echo=False, enable_monitoring=False)
        assert lm._interpreter.engine.model_obj is model
        return str(lm + PROMPTS[0] + guidance.gen(regex="[a-z ]{20,40}"))

    plain, speculator = text(), Speculator(gamma=4)
    with ngramspec.enable(model, speculator):
        assert text() == plain
    assert len(plain) >= len(PROMPTS[0]) + 20
    assert speculator.stats.runs == 0


def test_dspy_asks_a_server(monkeypatch, tmp_path):
    pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "true")  # it is not downloaded
    monkeypatch.setenv("DSPY_CACHEDIR", str(tmp_path))
    dspy = pytest.importorskip("dspy", reason="make test-frameworks")
    import httpx

    from ngramspec.server import grammars
    from ngramspec.server.settings import SharedText

    model, tokenizer = tiny()
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": SCHEMA}}
    settings = {"api_key": "none", "cache": False, "temperature": 0, "max_tokens": 100}

    def answers(drafter):
        given = {"drafter": drafter, "shared": SharedText(1 << 20, (), tokenizer)}
        with listening(model, tokenizer, **given) as (address, _):
            url = f"{address}/v1"
            lm = dspy.LM("openai/tiny", api_base=url, response_format=form, **settings)
            with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
                predict = dspy.Predict("question -> answer")
                found = [predict(question=each).answer for each in PROMPTS * 2]
            counts = httpx.get(f"{address}/metrics").text
        return found, sum(map(float, re.findall('_total{outcome="accepted".* (.*)', counts)))

    with patch.object(grammars, "_Worker", ThreadWorker):
        plain, forced = answers("none")
        drafted, accepted = answers("auto")
    assert drafted == plain
    assert accepted > forced + 100
