"""Use ngramspec's drafts in vLLM, without a server, and compare the time with plain vLLM.

Requires vLLM, with ngramspec in its environment; see docs/engines/vllm.md for costs and settings.
It prints the answer, both times and the tokens per step. There is no output here, because vLLM's
text and times depend on the device.
"""

import argparse
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

TEXT = """The lighthouse at Fenwick Point was built in 1854 after three ships were lost on the
reef in one winter. Its lamp could be seen from eighteen miles away. The keeper climbed the one
hundred and twelve steps every evening to light the lamp, and every morning to put it out."""
SPECULATION = {
    "speculative_config": {
        "method": "custom_class",
        "model": "ngramspec.engines.vllm.NgramspecProposer",
        "num_speculative_tokens": 24,
    },
    # The store lets all requests draft from earlier outputs. Leave it out where requests must
    # not learn anything about each other.
    "additional_config": {"ngramspec": {"stores": [{"namespace": "all"}], "log_every": 10}},
}


def answer(model, max_tokens, settings):
    """Return the text, the seconds, and the tokens per step."""
    from vllm import LLM, SamplingParams

    llm = LLM(model, max_model_len=2048, disable_log_stats=False, **settings)
    chat = [{"role": "user", "content": f"Summarize this text in two sentences:\n\n{TEXT}"}]
    llm.chat(chat, SamplingParams(temperature=0, max_tokens=1))  # loads kernels
    start = time.perf_counter()
    output = llm.chat(chat, SamplingParams(temperature=0, max_tokens=max_tokens))[0].outputs[0]
    seconds = time.perf_counter() - start
    values = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    accepted = values.get("vllm:spec_decode_num_accepted_tokens", 0)
    tokens = len(output.token_ids)
    return output.text, seconds, tokens / (tokens - accepted)


def main():
    """Generate with and without ngramspec, each in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="HuggingFaceTB/SmolLM2-135M-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    results = []
    for settings in ({}, SPECULATION):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            call = pool.submit(answer, options.model, options.max_new_tokens, settings)
            results.append(call.result())
    (plain, baseline, _), (text, speculative, tokens_per_step) = results
    print(text)
    print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
    print(f"{tokens_per_step:.1f} tokens per step")
    print(f"same text: {text == plain}")


if __name__ == "__main__":
    main()
