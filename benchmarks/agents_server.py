"""Decoding speed of recorded agent turns through ``ngramspec serve``, with and without drafts.

    python -m benchmarks agents_server --json agents_server.json
    python -m benchmarks agents_server --traces FILE --turns 30

The application of ``ngramspec serve`` runs in this process, because its model's logits are changed
so that it says what was recorded. Each turn is requested with drafts and with ``speculate: false``,
in turn, and which of them is first alternates. Both reuse the key-value cache of the turns before.
A text that is requested again would be copied from the first answer, so every turn is requested
once with drafts. First come turns of the file's first group of sessions, then those of the later
groups that have the same tasks (a session's name is TASK.TRIAL). Speeds are of decoding, without
the prefill, as the server's ``timings`` have them.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.agents import turns
from benchmarks.harness import add_json, write
from benchmarks.traces import PUBLIC
from ngramspec.cli import build_parser
from ngramspec.cli.options import add_count, add_model, load_model
from ngramspec.cli.serve import settings_of
from ngramspec.cli.usage import usable
from ngramspec.measure.forced import POSITIONS_AFTER_TEXT, forced_model
from ngramspec.measure.models import LoadedModel
from ngramspec.measure.traces import Trace

FIRST, REPEATED = "first", "repeated"
DRAFTS, PLAIN = "drafts", "plain"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--traces",
        type=Path,
        default=PUBLIC,
        metavar="FILE",
        help="JSON lines with group, id, session, prompt and output (default: the public traces)",
    )
    add_model(parser)
    add_count(parser, "--turns", 30, "turns of each part")
    add_json(parser)


def run(arguments: argparse.Namespace) -> int:
    """Measure, print, write the JSON."""
    loaded = load_model(arguments)
    limit = loaded.max_positions
    with usable():
        parts = chosen(turns(arguments.traces), arguments.turns, limit)
    longest = max(len(each.prompt) + len(each.output) for part in parts.values() for each in part)
    rows = []
    with (
        forced_model(loaded.model, longest + POSITIONS_AFTER_TEXT) as set_text,
        serving(loaded) as (client, name),
    ):
        asked = Asked(client, name, loaded, set_text)
        asked.one(parts[FIRST][0], speculate=False)  # warms up; its text is not stored
        for part, traces in parts.items():
            for at, trace in enumerate(traces):
                rows.append({"part": part, **asked.both(trace, drafts_first=at % 2 == 0)})
                print(shown(rows[-1]), flush=True)
    found = {part: summary([row for row in rows if row["part"] == part]) for part in parts}
    for part, each in found.items():
        print(f"{part}: {each}")
    write(arguments, {"model": loaded.name, "summary": found, "rows": rows})
    return 0


def chosen(traces: Sequence[Trace], count: int, limit: int | None) -> dict[str, list[Trace]]:
    """The turns of each part.

    Args:
        traces: in the order in which they were recorded.
        count: most turns of a part.
        limit: most tokens of a turn; longer ones are left out. None: no limit.
    """
    fitting = [
        trace for trace in traces if limit is None or len(trace.prompt) + len(trace.output) <= limit
    ]
    if not fitting:
        raise ValueError(f"no turn has at most {limit} tokens, which the model can read")
    first = [trace for trace in fitting if trace.group == fitting[0].group][:count]
    tasks = {task_of(trace) for trace in first}
    again = [
        trace for trace in fitting if trace.group != fitting[0].group and task_of(trace) in tasks
    ]
    return {FIRST: first} | ({REPEATED: again[:count]} if again else {})


def task_of(trace: Trace) -> str:
    """The task of a turn's session."""
    return trace.session.rpartition(".")[0]


@contextmanager
def serving(loaded: LoadedModel) -> Iterator[tuple[Any, str]]:
    """OpenAI's client of a server with the default options, and the model's name."""
    import openai
    import uvicorn

    from ngramspec.server.app import make_app

    settings = settings_of(build_parser().parse_args(["serve"]), loaded, {}, {})
    app = make_app(loaded.model, loaded.tokenizer, settings)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            if not thread.is_alive():
                raise RuntimeError("the server has not started")
            time.sleep(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        address = f"http://127.0.0.1:{port}/v1"
        with openai.OpenAI(base_url=address, api_key="none", max_retries=0, timeout=3600) as client:
            yield client, settings.name
    finally:
        server.should_exit = True
        thread.join()


class Asked:
    """Requests of recorded turns."""

    def __init__(self, client: Any, name: str, loaded: LoadedModel, set_text: Any) -> None:
        self.client, self.name, self.loaded, self.set_text = client, name, loaded, set_text

    def both(self, trace: Trace, *, drafts_first: bool) -> dict[str, Any]:
        """What was measured of a turn, with drafts and without."""
        text = [*trace.prompt.tolist(), *trace.output.tolist()]
        self.set_text(text)
        ways = (DRAFTS, PLAIN) if drafts_first else (PLAIN, DRAFTS)
        found: dict[str, Any] = {way: self.one(trace, speculate=way == DRAFTS) for way in ways}
        seconds = {way: found[way]["timings"]["predicted_ms"] / 1000 for way in ways}
        return {
            "id": trace.id,
            "session": trace.session,
            "prompt_tokens": len(trace.prompt),
            "seconds": seconds,
            "same_text": found[DRAFTS]["text"] == found[PLAIN]["text"] == self._expected(trace),
            **{way: found[way] for way in (DRAFTS, PLAIN)},
        }

    def one(self, trace: Trace, *, speculate: bool) -> dict[str, Any]:
        """Request a turn: its text, counts and the server's times."""
        answer = self.client.completions.create(
            model=self.name,
            prompt=trace.prompt.tolist(),
            max_tokens=len(trace.output),
            temperature=0,
            extra_body={
                "prompt_cache_key": trace.session,
                "ngramspec": {"speculate": speculate, "usage": True},
            },
        )
        return {
            "text": answer.choices[0].text,
            "tokens": answer.usage.completion_tokens,
            "reused": answer.usage.prompt_tokens_details.cached_tokens,
            "tokens_per_call": answer.usage.ngramspec["tokens_per_call"],
            "timings": answer.timings,
        }

    def _expected(self, trace: Trace) -> str:
        """The text of a turn up to the first token that ends an answer."""
        tokens = trace.output.tolist()
        ends = [at for at, token in enumerate(tokens) if token in self.loaded.eos_ids]
        cut = tokens[: ends[0]] if ends else tokens
        return str(self.loaded.tokenizer.decode(cut, skip_special_tokens=True))


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Speedups of a part: of its decoding, with the prefill, and the median of its turns."""

    def seconds(way: str, *parts: str) -> float:
        return sum(
            float(row[way]["timings"][f"{part}_ms"]) / 1000 for row in rows for part in parts
        )

    parts = ("prompt", "predicted")
    return {
        "turns": len(rows),
        "speedup": seconds(PLAIN, "predicted") / seconds(DRAFTS, "predicted"),
        "with_prefill": seconds(PLAIN, *parts) / seconds(DRAFTS, *parts),
        "median": median(row["seconds"][PLAIN] / row["seconds"][DRAFTS] for row in rows),
        "same_text": sum(row["same_text"] for row in rows),
        "reused": sum(row[DRAFTS]["reused"] + row[PLAIN]["reused"] for row in rows)
        / sum(2 * row["prompt_tokens"] for row in rows),
    }


def shown(row: dict[str, Any]) -> str:
    """A row as a line of text."""
    ratio = row["seconds"][PLAIN] / row["seconds"][DRAFTS]
    calls = row[DRAFTS]["tokens_per_call"]
    tokens = row[DRAFTS]["tokens"]
    same = "" if row["same_text"] else ", other text"
    return f"{row['part']} {row['id']}: {tokens} tokens, {calls:.2f} per call, {ratio:.2f}{same}"
