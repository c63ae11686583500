"""Serve a model to editors: completions that reuse the work of the previous keystroke, and draft
from a repository."""

from __future__ import annotations

import argparse
import logging
import os
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any, TypeVar

from ngramspec.cli.options import CommandOptions, UsageError, check_least, load_model, usable
from ngramspec.errors import check_int

if TYPE_CHECKING:
    from fastapi import FastAPI

    from ngramspec.measure.models import LoadedModel
    from ngramspec.server.settings import ServerSettings
    from ngramspec.stores import Corpus

Returned = TypeVar("Returned")

SUMMARY = "serve a model to editors, by OpenAI's and llama.cpp's interfaces"
MIB = 1 << 20
MAX_PORT = 65535
LOCAL_HOSTS = ("127.0.0.1", "localhost", "::1")
# Prompt tokens of a prefill forward; each takes a fraction of a second. Not tuned.
CPU_CHUNK_TOKENS, CHUNK_TOKENS = 128, 1024


def add_arguments(options: CommandOptions) -> None:
    """Declare the command's arguments."""
    options.model("fastapi", "uvicorn", "prometheus_client", "openai")
    options.drafter()
    heads = options.exclusive()
    heads.text("--assistant", "FOLDER", "a small draft model with the target's tokenizer")
    heads.flag("--mtp", "also draft with the model's MTP layers")
    options.text("--name", "NAME", "name of the model in responses (default: its own)")
    help = "a corpus to draft from; NAME=FILE names it; may be repeated"
    options.repeated("--corpus", "FILE", help)
    options.add("--host", default="127.0.0.1", help="address to bind to (default: 127.0.0.1)")
    help = "further names to accept in the Host header, separated by commas, or '*'"
    options.repeated("--allowed-hosts", "NAMES", f"{help}; may be repeated")
    options.count("--port", 8012, "port to listen on; 0: a free one")
    help = "require this key; may be repeated; also from NGRAMSPEC_API_KEYS, by commas"
    options.repeated("--api-key", "USER=KEY", help)
    help = "for unknown fields: answer 400, or name them in X-Ignored-Fields (default: refuse)"
    options.add("--unknown-fields", choices=("refuse", "warn"), default="refuse", help=help)
    help = "answer requests for another model with this one, or with 404 (default: answer)"
    options.add("--other-models", choices=("answer", "refuse"), default="answer", help=help)
    limits = options.group("limits")
    limits.count("--max-tokens", 256, "maximum tokens of an answer whose request sets no limit")
    limits.text("--context", "N", "maximum tokens of prompt and answer", type=int)
    limits.count("--max-body", 4, "maximum MiB of a request's body")
    limits.count("--cache", 2048, "MiB of key-value caches kept between requests")
    limits.count("--cache-of-key", 1024, "MiB of key-value caches kept for one API key")
    limits.count("--shared", 64, "MiB of all users' answers, which their later requests draft from")
    help = "redis://HOST:PORT, to share these answers between servers; also from NGRAMSPEC_SYNC"
    limits.text("--sync", "ADDRESS", help)
    limits.count("--active", 8, "maximum answers that are generated at the same time")
    limits.count(
        "--waiting", 64, "maximum answers of one key that wait; its further requests are refused"
    )
    limits.count("--grammar-seconds", 10, "maximum seconds to compile a grammar")
    limits.count("--drain", 30, "seconds that running answers get after SIGTERM")


def run(arguments: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    import uvicorn

    check_least(arguments, cache=0, cache_of_key=0, shared=0, drain=0)
    check_least(arguments, active=1, waiting=1, max_body=1, grammar_seconds=1)
    check_port(arguments.host, arguments.port)
    keys = read_keys(arguments.api_key, os.environ.get("NGRAMSPEC_API_KEYS", ""))
    if arguments.host not in LOCAL_HOSTS and not keys:
        refused = f"--host {arguments.host} lets other machines in"
        raise UsageError(f"{refused}: give --api-key, or keep --host 127.0.0.1")
    check_allowed(arguments.allowed_hosts)  # before the slow loading of the model
    corpora = open_corpora(arguments.corpus)
    if arguments.assistant is not None:
        from ngramspec.hf_model.assistants import check_folder

        with usable("--assistant"):
            check_folder(arguments.assistant)
    app = in_short_thread(lambda: prepare(arguments, keys, corpora))
    ending = {"timeout_graceful_shutdown": arguments.drain, "access_log": False}
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="info", **ending)
    return 0


def in_short_thread(work: Callable[[], Returned]) -> Returned:
    """The result of ``work``, run in a thread that ends, and with it its OpenMP workers."""
    # While a process has more of them than cores, all sleep between loops: tokens take 20 % longer.
    future = Future[Returned]()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    thread = Thread(target=run, daemon=True)  # Ctrl-C does not wait for it
    thread.start()
    thread.join()
    return future.result()


def prepare(
    arguments: argparse.Namespace, keys: dict[str, str], corpora: dict[str, Corpus]
) -> FastAPI:
    """Load the model: the application that serves it."""
    from ngramspec.hf_model.compat.devices import device_of
    from ngramspec.server.app import make_app

    loaded = load_model(arguments)
    if not (arguments.assistant or arguments.mtp):  # their costs are relative to its parameters
        from ngramspec.hf_model.compat.kernels import pack_linear_layers

        pack_linear_layers(loaded.model)
    with usable("--corpus"):
        for corpus in corpora.values():
            corpus.check_tokenizer(loaded.tokenizer)
    os.environ["PYTHONSAFEPATH"] = "1"  # grammars' workers import nothing from the folder
    logging.getLogger("ngramspec").setLevel(logging.WARNING)
    with usable():
        settings = settings_of(arguments, loaded, keys, corpora)
        app = make_app(loaded.model, loaded.tokenizer, settings)
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    print(f"serving {settings.name} on {device_of(loaded.model)} in {dtype}", flush=True)
    return app


def settings_of(
    arguments: argparse.Namespace,
    loaded: LoadedModel,
    keys: dict[str, str],
    corpora: dict[str, Corpus],
) -> ServerSettings:
    """The server's settings from the command line."""
    from ngramspec.drafters.registry import quoted
    from ngramspec.server.settings import Limits, ServerSettings, SharedText

    shared = None
    if arguments.shared:
        sync = arguments.sync or os.environ.get("NGRAMSPEC_SYNC") or None
        shared = SharedText(arguments.shared * MIB, keys, loaded.tokenizer, sync)
    head = "+mtp" * arguments.mtp
    if arguments.assistant is not None:
        head = f"+model({quoted(arguments.assistant)})"

    def given(*names: str) -> dict[str, Any]:
        return {name: getattr(arguments, name) for name in names}

    limits = Limits(
        body=arguments.max_body * MIB,
        pool=arguments.cache * MIB,
        pool_of_key=arguments.cache_of_key * MIB,
        chunk=CPU_CHUNK_TOKENS if arguments.device == "cpu" else CHUNK_TOKENS,
        **given("context", "active", "waiting", "grammar_seconds"),
    )
    return ServerSettings(
        name=arguments.name or loaded.name,
        shared=shared,
        keys=keys,
        corpora=corpora,
        drafter=f"{arguments.drafter}{head}",
        limits=limits,
        allowed_hosts=[arguments.host, *check_allowed(arguments.allowed_hosts)],
        **given("max_tokens", "unknown_fields", "other_models"),
    )


def check_port(host: str, port: int) -> None:
    """Raise a UsageError, before the slow loading of the model, if a port cannot be used."""
    with usable():
        check_int("--port", port, 0, MAX_PORT)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise UsageError(f"--host, --port: {error.strerror}") from error


def check_allowed(given: Sequence[str]) -> list[str]:
    """The hosts that an option names, separated by commas."""
    from ngramspec.server.app import AllowedHosts

    found = [each.strip() for text in given for each in text.split(",")]
    with usable("--allowed-hosts"):
        AllowedHosts(found)
    return found


def read_keys(given: Sequence[str], variable: str) -> dict[str, str]:
    """API keys by user, from the options and the environment variable, each USER=KEY."""
    keys: dict[str, str] = {}
    for text in (*given, *filter(None, variable.split(","))):
        user, equals, key = text.partition("=")
        if not (user and equals and key):
            # The text itself may be a secret.
            raise UsageError("--api-key and NGRAMSPEC_API_KEYS must have USER=KEY")
        if user in keys:
            raise UsageError(f"--api-key: user {user!r} has two keys")
        keys[user] = key
    return keys


def open_corpora(given: Sequence[str]) -> dict[str, Corpus]:
    """Corpora by the given name, or by the stem of their file."""
    from ngramspec.stores import Corpus

    corpora: dict[str, Corpus] = {}
    for text in given:
        name, equals, path = text.partition("=")
        file = Path(path if equals else text)
        name = name if equals else file.stem
        if name in corpora:
            raise UsageError(f"--corpus: two are named {name!r}; use NAME=FILE")
        with usable("--corpus"):
            corpora[name] = Corpus.open(file)
    return corpora
