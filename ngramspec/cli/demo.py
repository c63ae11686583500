"""Generate four texts with a real model, with and without speculation, and compare."""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from ngramspec.cli.options import (
    CommandOptions,
    UsageError,
    check_least,
    load_model,
    make_speculator,
    stages,
    usable,
)

if TYPE_CHECKING:
    from ngramspec.measure.tasks import SampleText

SUMMARY = "see and measure speculative decoding on a real model"
DTYPES = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16",),
    "float16": ("float16",),
    "both": ("float32", "bfloat16"),
}
EXACT = "float32"  # the text must be identical; narrower dtypes may round ties differently
MAX_NEW_TOKENS = 96
MAX_REPEAT_START_SECONDS = 90.0  # no repeats after this time, so slow machines end sooner


def add_arguments(options: CommandOptions) -> None:
    """Declare the command's options."""
    options.model_name("rich")
    help = "the model's dtype; both: float32, then bfloat16 (default)"
    options.add("--dtype", choices=DTYPES, default="both", help=help)
    options.drafter()
    options.gamma()
    help = "file with one prompt, for which a chat template is used if the model has one"
    options.path("--prompt-file", "FILE", help)
    options.count("--max-new-tokens", MAX_NEW_TOKENS, "maximum new tokens for each text")


def run(arguments: argparse.Namespace) -> int:
    """Show each text being generated, and measure; return 1 if one differs in float32."""
    speculator = make_speculator(arguments.drafter, arguments.gamma)
    check_least(arguments, max_new_tokens=1)
    texts = read_texts(arguments.prompt_file)
    import torch

    from ngramspec.cli.demo_view import View
    from ngramspec.measure.calls import WARM_UP_TOKENS, Configuration, ModelCaller, compare
    from ngramspec.measure.models import set_dtype

    begin = perf_counter()
    dtypes = DTYPES[arguments.dtype]
    view = View()
    with stages(view.err) as stage:
        loaded = load_model(
            arguments, dtype=dtypes[0], on_stage=lambda part: stage(f"Loading the model: {part}")
        )
    new, ours = arguments.max_new_tokens, Configuration("ngramspec", speculator=speculator)
    with usable():
        prompts = [loaded.encode(text.prompt, chat=text.chat) for text in texts]
    view.header(loaded.name, arguments.drafter, arguments.gamma)
    for number, (text, ids) in enumerate(zip(texts, prompts, strict=True), 1):
        view.title(f"{number}/{len(texts)}  {text.title}", text.prompt, len(ids))
        with view.stream(loaded.tokenizer, ids) as show:
            stats = ModelCaller(loaded.model).call(ours, ids, new, show).stats
        view.outcome(stats)
    different = 0
    for dtype in dtypes:
        late = perf_counter() - begin > MAX_REPEAT_START_SECONDS
        repeats = 1 if dtype == EXACT or late else 2  # float32 only shows identity, and is slow
        rows = []
        with stages(view.err) as stage:
            stage(f"Measuring in {dtype}")
            set_dtype(loaded.model, getattr(torch, dtype))
            compare(loaded, speculator, "warm-up", prompts[0], WARM_UP_TOKENS, 1)
            for text, ids in zip(texts, prompts, strict=True):
                stage(f"Measuring in {dtype}: {text.title}")
                rows.append(compare(loaded, speculator, text.name, ids, new, repeats))
        view.table(dtype, rows, repeats)
        if dtype == EXACT:
            different = sum(row.difference is not None for row in rows)
            view.verdict(dtype, different, len(rows))
    return 1 if different else 0


def read_texts(prompt_file: Path | None) -> list[SampleText]:
    """The demo's texts, or the one in ``prompt_file``, which must be UTF-8 and not blank."""
    from ngramspec.measure.tasks import SampleText, sample_texts

    if prompt_file is None:
        return sample_texts()[:4]
    with usable("--prompt-file"):
        prompt = prompt_file.read_text(encoding="utf-8")
        if not prompt.strip():
            raise UsageError(f"--prompt-file: {prompt_file} is empty")
    return [SampleText(prompt_file.stem, prompt_file.name, prompt.rstrip("\n"))]
