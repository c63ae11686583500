"""Ask ``ngramspec serve`` for a completion, as an editor does.

Start the server in another terminal; without a model it serves SmolLM2-135M-Instruct. In bfloat16,
the two texts can differ where two tokens are nearly tied::

    ngramspec serve --dtype float32

The open file is sent as ``reference``, and the answer is streamed. ``X-Session`` ends an older
request of the same editor that is still running. Output on two CPU cores::

    def area(width, height):
        return width * height

    def volume(width, height, depth):
        return area(width, height) * depth

    baseline 2.0 s, speculative 0.4 s
    13.0 tokens per forward
    same text: True
"""

import argparse
import json
import os
import time
import urllib.request

OPEN_FILE = """def area(width, height):
    return width * height


def volume(width, height, depth):
    return area(width, height) * depth
"""
PROMPT = f"```python\n{OPEN_FILE}```\n\nThe same code with docstrings:\n\n```python\n"


def stream(url, body):
    """The events of a streamed completion."""
    headers = {"Content-Type": "application/json", "X-Session": "editor-client"}
    if "NGRAMSPEC_API_KEY" in os.environ:
        headers["Authorization"] = f"Bearer {os.environ['NGRAMSPEC_API_KEY']}"
    data = json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, headers)
    with urllib.request.urlopen(request) as response:
        for line in response:
            if line.startswith(b"data: {"):
                yield json.loads(line.removeprefix(b"data: "))


def complete(url, max_tokens, speculate):
    """Return the text, its statistics and the seconds."""
    body = {
        "prompt": PROMPT,
        "max_tokens": max_tokens,
        "temperature": 0,
        "stop": "```",
        "stream": True,
        "stream_options": {"include_usage": True},
        "ngramspec": {"speculate": speculate, "usage": True, "reference": OPEN_FILE},
    }
    text, usage, start = "", {}, time.perf_counter()
    for event in stream(url, body):
        text += "".join(choice["text"] for choice in event["choices"])
        usage = event.get("usage") or usage
    return text, usage["ngramspec"], time.perf_counter() - start


def main():
    """Complete the prompt as baseline and with speculation."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", default="http://127.0.0.1:8012")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    options = parser.parse_args()
    complete(options.url, 1, speculate=False)  # reads the prompt, which the server then keeps
    plain, _, baseline = complete(options.url, options.max_new_tokens, speculate=False)
    text, usage, speculative = complete(options.url, options.max_new_tokens, speculate=True)
    print(text)
    print(f"baseline {baseline:.1f} s, speculative {speculative:.1f} s")
    print(f"{usage['tokens_per_call']:.1f} tokens per forward")
    print(f"same text: {text == plain}")


if __name__ == "__main__":
    main()
