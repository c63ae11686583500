"""Build, inspect, check and rebuild corpora: texts that drafts are copied from, in one file that
processes share."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ngramspec.cli.options import MODEL_HELP, CommandOptions, UsageError, counted, printable, usable
from ngramspec.errors import check_installed, check_int
from ngramspec.stores.documents import MAX_FILE_MIB

SUMMARY = "make a file of texts to draft from"
MAX_FILE_HELP = "leave out files of more than MIB mebibytes (default:"
PACKAGES = ("numpy", "transformers", "rich", "pydivsufsort", "pathspec")  # that building needs
MAX_NAMED_FILES = 5  # named files per reason for leaving them out


def add_arguments(options: CommandOptions) -> None:
    """Declare the subcommands."""
    commands = options.commands()
    build = commands("build", run_build, "build a corpus from files and folders")
    build.path("out", "OUT", "file to write, usually *.ngc")
    build.path("paths", "PATH", "files and folders", nargs="+")
    build.text("--tokenizer", "MODEL", MODEL_HELP)
    help = "only files whose name or path in the folder matches; may be repeated"
    build.repeated("--glob", "PATTERN", help)
    build.text("--jsonl", "FIELD", "every line is a JSON object with a text in FIELD")
    build.text("--max-file", "MIB", f"{MAX_FILE_HELP} {MAX_FILE_MIB})", type=int)
    for name, run, text in (
        ("info", run_info, "print what a corpus holds"),
        ("verify", run_verify, "read a whole corpus and check everything in it"),
        ("watch", run_watch, "build a corpus again whenever its files change, until Ctrl-C"),
        ("update", run_update, "build a corpus again, from the files that it was built from"),
    ):
        command = commands(name, run, text)
        command.path("corpus", "CORPUS", "the corpus file")
        if run in (run_watch, run_update):
            command.text("--max-file", "MIB", f"{MAX_FILE_HELP} as it was built)", type=int)


def run_build(arguments: argparse.Namespace) -> int:
    """Build a corpus; print the files left out and the result."""
    recipe = {name: getattr(arguments, name) for name in ("tokenizer", "glob", "jsonl")}
    if arguments.tokenizer is not None and Path(arguments.tokenizer).expanduser().exists():
        recipe["tokenizer"] = str(Path(arguments.tokenizer).expanduser().absolute())
    recipe["paths"] = [str(path.absolute()) for path in arguments.paths]
    return build(arguments.out, with_max_file(recipe, arguments.max_file))


def run_update(arguments: argparse.Namespace) -> int:
    """Build a corpus again."""
    return build(arguments.corpus, recipe_of(arguments))


def run_watch(arguments: argparse.Namespace) -> int:
    """Build a corpus again whenever the files that it was built from have changed."""
    with usable():
        check_installed("watchfiles", *PACKAGES)
    from ngramspec.stores.corpus import watch

    recipe = recipe_of(arguments)
    paths = [Path(each) for each in recipe["paths"]]
    print(f"watching {', '.join(map(str, paths))}", flush=True)
    with usable():
        watch(paths, arguments.corpus, lambda: build(arguments.corpus, recipe))
    return 0


def recipe_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The arguments that the corpus was built with, and another ``--max-file`` if it is given."""
    from ngramspec.stores import Corpus

    with usable():
        recipe = Corpus.open(arguments.corpus).recipe()
    if not isinstance(recipe.get("paths"), list):
        raise UsageError(f"{arguments.corpus} was not built by ngramspec corpus build")
    return with_max_file(recipe, arguments.max_file)


def with_max_file(recipe: dict[str, Any], max_file: int | None) -> dict[str, Any]:
    """The recipe with another maximum file size, an integer >= 1; None: with its own."""
    if max_file is None:
        max_file = recipe.get("max_file", MAX_FILE_MIB)
    with usable():
        return recipe | {"max_file": check_int("--max-file", max_file, 1, 1 << 20)}


def run_info(arguments: argparse.Namespace) -> int:
    """Print the contents of a corpus as JSON."""
    from ngramspec.stores import Corpus

    with usable():
        corpus = Corpus.open(arguments.corpus)
        fields = asdict(corpus.info()) | {"recipe": corpus.recipe()}
    print(json.dumps(fields, indent=1))
    return 0


def run_verify(arguments: argparse.Namespace) -> int:
    """Check a corpus; return 1 if it is broken."""
    from ngramspec.stores import Corpus, StoreFileError

    with usable():
        corpus = Corpus.open(arguments.corpus)
        try:
            corpus.verify()
        except StoreFileError as error:
            print(printable(str(error)))
            return 1
        print(f"{arguments.corpus}: {counted(len(corpus), 'token')}, nothing broken")
    return 0


def build(out: Path, recipe: dict[str, Any]) -> int:
    """Build a corpus by a recipe; a UsageError if something cannot be read, used or written."""
    from ngramspec.measure import models

    with usable():
        check_installed(*PACKAGES, *models.packages_of(recipe.get("tokenizer")))
    from rich.console import Console
    from rich.progress import Progress

    from ngramspec.stores import Corpus
    from ngramspec.stores.documents import find_files, read_texts

    console = Console(stderr=True)
    left_out: dict[str, list[Path]] = {}  # files by reason

    def leave_out(path: Path, why: str) -> None:
        left_out.setdefault(why, []).append(path)

    try:
        with usable("--tokenizer"), models.gguf_read_once():
            tokenizer = models.load_tokenizer(models.locate(recipe.get("tokenizer")))
        with usable():
            paths = [Path(each) for each in recipe["paths"]]
            files = list(find_files(paths, recipe.get("glob") or (), leave_out))
            with Progress(console=console, transient=True) as bar:
                task = bar.add_task("reading", total=len(files))
                tracked = bar.track(files, task_id=task)
                corpus = Corpus.build(
                    read_texts(tracked, recipe.get("jsonl"), leave_out, recipe["max_file"]),
                    out,
                    tokenizer=tokenizer,
                    recipe=recipe,
                    on_stage=lambda stage: bar.update(task, description=stage),
                )
    finally:  # if nothing is left, this says why
        for why, given in sorted(left_out.items(), key=lambda each: -len(each[1])):
            names = ", ".join(printable(str(path)) for path in given[:MAX_NAMED_FILES])
            more = ", ..." if len(given) > MAX_NAMED_FILES else ""
            line = f"left out, {why}: {len(given)} ({names}{more})"
            console.print(line, markup=False, highlight=False)
    info = corpus.info()
    print(
        f"{out}: {counted(info.tokens, 'token')} of {counted(info.documents, 'document')},"
        f" {info.bytes / info.tokens:.1f} bytes a token"
    )
    return 0
