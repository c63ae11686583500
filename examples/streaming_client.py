"""Read an answer as it is written: from a running server, or from a model in this process.

With a server (``ngramspec wrap MODEL_DIR OUT_DIR``, then
``transformers serve OUT_DIR --trust-remote-code``)::

    python examples/streaming_client.py --url http://localhost:8000 --model OUT_DIR

Without ``--url`` the model is loaded here and streams to the terminal.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator

import smollm2

import ngramspec
from ngramspec import Speculator

QUESTION = f"Summarize this text in two sentences:\n\n{smollm2.TEXT}"


def from_server(url: str, model: str, max_tokens: int) -> Iterator[str]:
    """The pieces of an answer, from a server that speaks the OpenAI chat protocol."""
    body = {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": max_tokens,
        "stream": True,
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        for line in response:
            data = line.decode().strip().removeprefix("data: ")
            if data.startswith("{"):
                for choice in json.loads(data)["choices"]:
                    yield choice["delta"].get("content") or ""


def from_model(name: str | None, max_tokens: int) -> None:
    """Print the answer of a model in this process while it is generated, then times and statistics.

    The baseline runs first, without a streamer.
    """
    from transformers import TextStreamer

    model, tokenizer = smollm2.load(name)
    inputs = smollm2.encode(tokenizer, QUESTION)
    call = {**inputs, "max_new_tokens": max_tokens, "do_sample": False}
    speculator = Speculator()
    streamer = TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    _, baseline = smollm2.timed(model.generate, **call)
    _, speculative = smollm2.timed(
        ngramspec.generate, model, **call, speculator=speculator, streamer=streamer
    )
    smollm2.report(baseline, speculative, speculator.stats)


def main() -> None:
    """Stream one answer to the terminal."""
    options = smollm2.parser("read an answer as it is written", max_new_tokens=64)
    options.add_argument("--url", help="a running server, such as http://localhost:8000")
    arguments = options.parse_args()
    if arguments.url is None:
        from_model(arguments.model, arguments.max_new_tokens)
        return
    model = arguments.model or smollm2.HUB
    for piece in from_server(arguments.url, model, arguments.max_new_tokens):
        print(piece, end="", flush=True)
    print()


if __name__ == "__main__":
    main()
