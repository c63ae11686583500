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

QUESTION = "Repeat this list three times: red, green, blue, yellow."


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
    """Print the answer of a model in this process while it is generated."""
    from transformers import TextStreamer

    model, tokenizer = smollm2.load(name)
    ngramspec.generate(
        model,
        **smollm2.encode(tokenizer, QUESTION),
        speculator=Speculator(),
        streamer=TextStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True),
        max_new_tokens=max_tokens,
        do_sample=False,
    )


def main() -> None:
    """Stream one answer to the terminal."""
    options = smollm2.parser("read an answer as it is written", max_new_tokens=80)
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
