"""Evaluations: ``HFLM.model`` of lm-eval, and ``TransformersModel.model`` of lighteval.

Both end a batch by criteria of their own, which see all rows at once and remember what they saw.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest
from frameworks.usual_call import check, tiny

PROMPTS = ["One, two, three. One, two,", "abcabcabcab", "x y z x y z x", "the cat, the"]
STOPS = [["not there"], ["C"], ["-", "rrr"]]  # no, both and one of two batches end early


@pytest.mark.parametrize("stops", STOPS, ids="".join)
def test_lm_eval_generates_until_strings(stops):
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="make test-frameworks")
    from lm_eval.api.instance import Instance

    model, tokenizer = tiny()
    harness = huggingface.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2)
    assert harness.model is model
    settings = {"until": stops, "max_gen_toks": 24, "do_sample": False}

    def answers():
        requests = [
            Instance("generate_until", {}, (prompt, settings), at)
            for at, prompt in enumerate(PROMPTS)
        ]
        with patch.object(harness, "tok_decode", wraps=harness.tok_decode) as decode:
            texts = harness.generate_until(requests, disable_tqdm=True)
        return texts, decode.call_args_list  # tokens after a stop, too

    check(harness.model, answers)


@pytest.mark.parametrize("stops", STOPS, ids="".join)
def test_lighteval_generates_until_strings(tmp_path, stops):
    models = pytest.importorskip(
        "lighteval.models.transformers.transformers_model", reason="make test-frameworks"
    )
    from lighteval.tasks.requests import Doc

    tiny(tmp_path)
    config = models.TransformersModelConfig(
        model_name=str(tmp_path),
        batch_size=2,
        device="cpu",
        cache_dir=str(tmp_path),
        override_chat_template=False,
    )
    evaluated = models.TransformersModel(config)
    evaluated._cache = None  # of answers, on disk
    fixed = {"choices": [], "gold_index": 0, "generation_size": 24, "stop_sequences": stops}
    docs = [Doc(query=prompt, id=str(at), **fixed) for at, prompt in enumerate(PROMPTS)]

    def answers():
        return [
            (answer.text, [each.tolist() for each in answer.output_tokens])
            for answer in evaluated.greedy_until(docs)
        ]

    check(evaluated.model, answers)
