"""Evaluations: ``HFLM.model`` of lm-eval, and ``TransformersModel.model`` of lighteval."""

from __future__ import annotations

import pytest
from usual_call import check, tiny

PROMPTS = ["One, two, three. One, two,", "abcabcabcab", "x y z x y z x", "the cat, the"]


def test_lm_eval_generates_until_strings():
    huggingface = pytest.importorskip("lm_eval.models.huggingface", reason="make test-frameworks")
    from lm_eval.api.instance import Instance

    model, tokenizer = tiny()
    harness = huggingface.HFLM(pretrained=model, tokenizer=tokenizer, batch_size=2)

    def texts(*until):
        settings = {"until": list(until), "max_gen_toks": 24, "do_sample": False}
        requests = [
            Instance("generate_until", {}, (each, settings), index)
            for index, each in enumerate(PROMPTS)
        ]
        return harness.generate_until(requests, disable_tqdm=True)

    whole = texts("not there")
    print(whole)
    s = check(harness.model, lambda: texts("not there"))
    print(s, s.tokens_per_call)
    s = check(harness.model, lambda: texts(whole[0][9:11], "\n"))
    print(s, s.tokens_per_call)
