"""``bench e2e`` and ``bench profile``: whole generations side by side, and step by step."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ngramspec.cli import UsageError
from ngramspec.cli.arguments import check_least, load_on_device, usable
from ngramspec.cli.demo import DTYPES, Text, read_texts
from ngramspec.cli.demo import built_in as read_text

if TYPE_CHECKING:
    from ngramspec.bench.e2e import Forcing
    from ngramspec.bench.tasks import Prompt
    from ngramspec.cli.models import LoadedModel

BEHIND = 4352  # positions of the longest draft that may be asked for, and of padding

# The demo's texts and one more, by what they are examples of.
BUILT_IN = {
    "summarize": "summarization",
    "answer": "context_qa",
    "code": "code_completion",
    "rewrite": "code_edit",
    "chat": "chat",
}


def add_arguments(commands: Any) -> None:
    """Declare both subcommands among those of ``bench``."""
    e2e = commands.add_parser(
        "e2e",
        help="plain generate, prompt lookup and ngramspec side by side",
        description="Whole calls of plain generate, transformers' prompt lookup and ngramspec, in"
        " turn in one process: speed, its ratio to plain, share of the limit, memory, text.",
    )
    _add_model(e2e)
    e2e.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="JSON lines with group, id and prompt, a text or token ids (default: the demo's)",
    )
    e2e.add_argument(
        "--chat",
        action="store_true",
        help="put prompts that are marked with [INST] into the model's own chat template",
    )
    e2e.add_argument(
        "--tasks",
        nargs="+",
        metavar="TASK",
        help="groups of the file, or 'nothing': random text that is forced (default: all)",
    )
    e2e.add_argument(
        "--prompt-tokens",
        nargs=2,
        type=int,
        metavar=("MIN", "MAX"),
        help="use the file's prompts of this length (default: 300 700, for code_edit 300 1200)",
    )
    e2e.add_argument(
        "--lengths",
        nargs="+",
        type=int,
        metavar="N",
        help="instead, cut or fill every prompt to exactly so many tokens, each length in turn",
    )
    e2e.add_argument("--prompts-per-task", type=int, default=8, metavar="N", help="default: 8")
    e2e.add_argument("--max-new-tokens", type=int, default=96, metavar="N", help="default: 96")
    e2e.add_argument(
        "--least",
        type=int,
        default=48,
        metavar="N",
        help="leave out prompts whose plain output is shorter (default: 48)",
    )
    e2e.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    e2e.add_argument("--lookup", nargs="*", type=int, default=[3, 10], metavar="N")
    e2e.add_argument(
        "--width", nargs="+", type=int, default=[], metavar="N", help="also with fixed widths"
    )
    e2e.add_argument(
        "--tree", nargs="+", type=int, default=[], metavar="N", help="also with trees of N nodes"
    )
    e2e.add_argument("--chains", action="store_true", help="also with drafts that never branch")
    e2e.add_argument(
        "--speculator",
        action="append",
        default=[],
        type=_arguments_of,
        metavar="JSON",
        help="also with these arguments of Speculator, such as '{\"gamma\": 8}'",
    )
    e2e.add_argument("--compiled", action="store_true", help="also with compiled static forwards")
    e2e.add_argument(
        "--keep", action="store_true", help="one Speculator for all calls, which learns from them"
    )
    e2e.add_argument(
        "--same-text",
        action="store_true",
        help="force what plain generate says in all ways: in bfloat16 their texts part at ties",
    )
    e2e.add_argument("--json", type=Path, metavar="OUT", help="write everything measured")
    e2e.add_argument("--plots", type=Path, metavar="FOLDER", help="draw PNG files")
    e2e.set_defaults(benchmark=run_e2e)

    profile = commands.add_parser(
        "profile",
        help="where a step's time goes",
        description="The share of drafting, input preparation, forward, verification, rollback,"
        " streaming and the rest of Python in a step: copying a text, and with nothing to predict.",
    )
    _add_model(profile)
    profile.add_argument("--max-new-tokens", type=int, default=96, metavar="N", help="default: 96")
    profile.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    profile.add_argument("--json", type=Path, metavar="OUT", help="write everything measured")
    profile.set_defaults(benchmark=run_profile)


def run_e2e(arguments: argparse.Namespace) -> int:
    """Measure; print, write and draw what came out."""
    from ngramspec.bench.e2e import EndToEnd, Plan, by_model, by_processor, to_dict
    from ngramspec.bench.forced import forced_model
    from ngramspec.bench.machine import machine
    from ngramspec.bench.summary import summarize
    from ngramspec.bench.ways import usual_ways
    from ngramspec.cli.bench import need_plots, write
    from ngramspec.cli.e2e_view import console, e2e_tables

    need_plots(arguments.plots)
    check_least(arguments, repeats=1, max_new_tokens=2, prompts_per_task=1, least=2)
    screen = console()
    loaded = load_on_device(arguments)
    prompts = _prompts(arguments, loaded)
    ways = usual_ways(
        lookups=arguments.lookup,
        widths=arguments.width,
        trees=arguments.tree,
        chains=arguments.chains,
        speculators=arguments.speculator,
        compiled=arguments.compiled,
    )
    plan = Plan(
        repeats=arguments.repeats,
        new=arguments.max_new_tokens,
        least=arguments.least,
        prompts=arguments.prompts_per_task,
        keep=arguments.keep,
        same_text=arguments.same_text,
    )
    room = max((len(each.ids) for each in prompts), default=0) + plan.new + BEHIND
    with ExitStack() as stack:
        forcing: Forcing = by_processor
        if plan.same_text:
            forcing = by_model(stack.enter_context(forced_model(loaded.model, room)))
        status = stack.enter_context(screen.status("measuring"))
        bench = EndToEnd(loaded.model, ways, plan, forcing=forcing, progress=status.update)
        with usable():
            measured = bench.run(prompts)
    rows = summarize(measured)
    for table in e2e_tables(rows):
        screen.print(table)
    for way, reason in measured.skipped.items():
        screen.print(f"skipped: {way}: {reason}", markup=False, highlight=False)
    for way, count in measured.compiling.items():
        screen.print(f"{way}: {count} calls done again, something was compiled in them")
    for task, count in measured.left_out.items():
        screen.print(f"{task}: {count} prompts left out, their plain output is too short")
    model = {"model": loaded.name, "dtype": arguments.dtype, "device": arguments.device}
    settings = {**model, **asdict(plan), "ways": [asdict(way) for way in ways]}
    write(
        arguments.json,
        {"settings": settings, "where": machine(), "summary": rows, **to_dict(measured)},
    )
    if arguments.plots is not None:
        from ngramspec.bench.plots import plot_e2e

        for path in plot_e2e(rows, arguments.plots):
            print(path)
    return 0


def run_profile(arguments: argparse.Namespace) -> int:
    """Profile; print and write what came out."""
    from ngramspec.bench.machine import machine
    from ngramspec.bench.profile import profile
    from ngramspec.bench.tasks import unpredictable
    from ngramspec.cli.bench import write
    from ngramspec.cli.e2e_view import console, profile_table

    check_least(arguments, repeats=1, max_new_tokens=2)
    screen = console()
    loaded = load_on_device(arguments)
    copying = [each for each in built_in(loaded) if each.task == "code_edit"]
    new, vocab = arguments.max_new_tokens, loaded.model.config.vocab_size
    random = unpredictable(copying, new, vocab, _ends(loaded.model))
    with screen.status("profiling"):
        rows = profile(loaded.model, [*copying, *random], new, arguments.repeats)
    screen.print(profile_table(rows))
    settings = {"model": loaded.name, "dtype": arguments.dtype, "device": arguments.device}
    write(arguments.json, {"settings": settings, "where": machine(), "rows": rows})
    return 0


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", metavar="MODEL", help="folder or hub id (default: the embedded SmolLM2)"
    )
    parser.add_argument("--dtype", choices=[*DTYPES][:3], default="bfloat16")
    parser.add_argument("--device", default="cpu", metavar="DEVICE", help="default: cpu")


def _prompts(arguments: argparse.Namespace, loaded: LoadedModel) -> list[Prompt]:
    """The prompts of the tasks and lengths asked for."""
    from ngramspec.bench.tasks import NOTHING, fit, of_length, read_tasks, unpredictable

    wanted = [NOTHING if each == "nothing" else each for each in arguments.tasks or ()]
    if arguments.chat and (arguments.prompts is None or not loaded.tokenizer.chat_template):
        raise UsageError("--chat needs --prompts, and a model that has a chat template")
    if arguments.prompts is None:
        pool = built_in(loaded)
    else:
        with usable("--prompts"):
            pool = read_tasks(arguments.prompts, _encoder(loaded))
        pool = [_as_chat(each, loaded) for each in pool] if arguments.chat else pool
    known = [*dict.fromkeys(each.task for each in pool), NOTHING]
    if unknown := [each for each in wanted if each not in known]:
        tasks = ", ".join(["nothing", *known[:-1]])
        raise UsageError(f"--tasks: {unknown[0]!r} is none of {tasks}")
    wanted = wanted or known
    of_task = [[each for each in pool if each.task == task] for task in known[:-1]]
    if arguments.lengths:
        lengths = arguments.lengths
        sets = [[each for many in of_task for each in fit(many, length)] for length in lengths]
    elif arguments.prompts is not None:
        between = tuple(arguments.prompt_tokens) if arguments.prompt_tokens else None
        sets = [of_length(pool, between)]
    else:
        sets = [pool]
    new, vocab = arguments.max_new_tokens, loaded.model.config.vocab_size
    prompts = []
    for each in sets:
        random = unpredictable(each, new, vocab, _ends(loaded.model))
        prompts += [prompt for prompt in [*each, *random] if prompt.task in wanted]
    return prompts


def built_in(loaded: LoadedModel) -> list[Prompt]:
    """The package's texts as prompts, one for each task."""
    from ngramspec.bench.tasks import Prompt

    texts = [*read_texts(None), Text("chat", "Answer a letter", read_text("chat.txt"))]
    return [
        Prompt(BUILT_IN[text.name], text.name, tuple(_encoder(loaded, chat=text.chat)(text.prompt)))
        for text in texts
    ]


def _encoder(loaded: LoadedModel, *, chat: bool = True) -> Callable[[str], list[int]]:
    """What makes token ids of a text: a user's message, if the model has a template for it."""
    from ngramspec import Speculator
    from ngramspec.cli.measure import Measurement

    measurement = Measurement(loaded, Speculator(), 1)
    return lambda text: measurement.encode(text, chat=chat)


def _as_chat(prompt: Prompt, loaded: LoadedModel) -> Prompt:
    """The prompt in the model's chat template, if another model's marks say that it is a chat."""
    from ngramspec.bench.tasks import messages

    turns = messages(loaded.tokenizer.decode(prompt.ids))
    if not turns:
        return prompt
    encoded = loaded.tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=True
    )
    return replace(prompt, ids=tuple(encoded["input_ids"]))


def _ends(model: Any) -> list[int]:
    """The ids that end a sequence."""
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def _arguments_of(text: str) -> dict[str, Any]:
    """``--speculator``: a JSON object; the Speculator checks the rest."""
    try:
        fields = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {text}") from error
    if not isinstance(fields, dict):
        raise argparse.ArgumentTypeError(f"not a JSON object: {text}")
    return fields
