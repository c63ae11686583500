"""langchain-huggingface: ``HuggingFacePipeline`` keeps the model in ``llm.pipeline.model``."""

from __future__ import annotations

import pytest
from frameworks.usual_call import check, tiny

langchain = pytest.importorskip("langchain_huggingface", reason="make test-frameworks")


def test_a_pipeline_as_a_language_model(tmp_path):
    tiny(tmp_path)
    llm = langchain.HuggingFacePipeline.from_model_id(
        model_id=str(tmp_path),
        task="text-generation",
        pipeline_kwargs={"max_new_tokens": 24, "do_sample": False},
    )
    prompts = ["One, two, three. One, two,", "abcabcabcab"]
    check(llm.pipeline.model, lambda: [llm.invoke(each) for each in prompts])
    check(llm.pipeline.model, lambda: "".join(llm.stream(prompts[0])))
