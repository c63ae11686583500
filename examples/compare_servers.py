"""Compare the greedy texts of two servers that have OpenAI's completions route.

A text that differs must do so at a near tie: the first server's log-probabilities of the two tokens
are at most ``--tie`` apart. The exit status is 1 if one differs elsewhere. ``--first`` adds fields
to the first server's requests, so that ``ngramspec serve`` can be compared with itself::

    python examples/compare_servers.py http://127.0.0.1:8012 http://127.0.0.1:8012 \\
        --first '{"ngramspec": {"speculate": false}}'

Output for ``ngramspec serve --dtype float32``::

    3 of 3 texts are equal
"""

import argparse
import json
import os
import sys
import urllib.request

PROMPTS = [
    "The lighthouse was built in 1854. The keeper climbed the steps every evening. The",
    "def area(width, height):\n    return width * height\n\ndef volume(width, height, depth):\n",
    '{"name": "Ann", "city": "Oslo"}\n{"name": "Bob", "city": "Rome"}\n{"name": "Eve",',
]


def ask(url, route, body=None):
    """The JSON that a server answers."""
    headers = {"Content-Type": "application/json"}
    if "OPENAI_API_KEY" in os.environ:
        headers["Authorization"] = f"Bearer {os.environ['OPENAI_API_KEY']}"
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{url}/v1/{route}", data, headers)
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def complete(url, prompt, max_tokens, fields):
    """The tokens of a greedy completion, and the most probable ones at each place."""
    body = {"model": ask(url, "models")["data"][0]["id"], "prompt": prompt}
    body |= {"max_tokens": max_tokens, "temperature": 0, "logprobs": 5, **fields}
    found = ask(url, "completions", body)["choices"][0]["logprobs"]
    return found["tokens"], found["top_logprobs"]


def main():
    """Compare the texts of all prompts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("urls", nargs=2, metavar="URL")
    parser.add_argument("--prompts", help='JSON lines such as {"prompt": "..."}')
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--tie", type=float, default=0.25, help="in log-probability")
    parser.add_argument("--first", type=json.loads, default={}, metavar="JSON")
    options = parser.parse_args()
    prompts = PROMPTS
    if options.prompts:
        with open(options.prompts, encoding="utf-8") as lines:
            prompts = [json.loads(line)["prompt"] for line in lines]
    equal = wrong = 0
    for number, prompt in enumerate(prompts):
        (one, scores), (other, _) = (
            complete(url, prompt, options.max_new_tokens, fields)
            for url, fields in zip(options.urls, (options.first, {}), strict=True)
        )
        pairs = enumerate(zip(one, other, strict=False))
        place, (mine, its) = next((each for each in pairs if len({*each[1]}) > 1), (-1, ("", "")))
        if place < 0:
            equal += 1
            continue
        known = scores[place]
        apart = known[mine] - known[its] if its in known else float("inf")
        wrong += apart > options.tie
        what = "near tie" if apart <= options.tie else "DIFFERENT"
        print(f"{what}: prompt {number}, token {place}: {mine!r}, {its!r}, {apart:.3f} apart")
    print(f"{equal} of {len(prompts)} texts are equal")
    sys.exit(1 if wrong else None)


if __name__ == "__main__":
    main()
