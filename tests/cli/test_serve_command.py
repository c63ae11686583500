"""The arguments of ``ngramspec serve`` that are refused before a model is loaded."""

from __future__ import annotations

import argparse
import socket
from contextlib import nullcontext
from threading import current_thread
from types import SimpleNamespace

import pytest
from conftest import tiny_llama
from gpu.device import pretended

from ngramspec import build_drafter
from ngramspec.cli import build_parser, main, serve
from ngramspec.cli.options import UsageError, load_model
from ngramspec.cli.serve import read_keys, settings_of
from ngramspec.hf_model.compat.kernels import can_pack
from ngramspec.measure.models import LoadedModel
from ngramspec.server.settings import Limits, ServerSettings

pytest.importorskip("prometheus_client", reason="pip install 'ngramspec[serve]'")


def error_of(capsys, *arguments):
    assert main(["serve", "--port", "0", *arguments]) == 2
    return capsys.readouterr().err


def test_a_refused_key_is_not_printed(capsys):
    assert "secret" not in error_of(capsys, "--api-key", "secret")


@pytest.mark.parametrize("folder", ["/a (b)/c,d=e", "5", "/plain"])
def test_the_assistants_folder_may_have_any_name(folder):
    given = ["serve", "model", "--assistant", folder, "--shared", "0", "--device", "cpu"]
    arguments = build_parser().parse_args(given)
    settings = settings_of(arguments, SimpleNamespace(name="m", tokenizer=None), {}, {})
    assert build_drafter(settings.drafter).assistants[0].assistant == folder


def test_keys_come_from_options_and_environment():
    assert read_keys(["a=1"], "b=2,c=x=y,") == {"a": "1", "b": "2", "c": "x=y"}
    with pytest.raises(UsageError, match="two keys"):
        read_keys(["a=1"], "a=2")


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        *((ServerSettings, {"keys": {user: "key"}}, "user") for user in ("", "a/b", "x" * 56)),
        (ServerSettings, {"keys": {"a": " key"}}, "the key of 'a'"),
        (ServerSettings, {"unknown_fields": "ignore"}, "unknown_fields must be"),
        (ServerSettings, {"drafter": "none", "corpora": {"a": 0}}, "drafter none takes no stores"),
        (Limits, {"chunk": 0}, "chunk must be >= 1"),
        (Limits, {"context": 1}, "context must be >= 2"),
        (Limits, {"grammar_seconds": 0}, "grammar_seconds must be > 0"),
    ],
)
def test_server_settings_and_limits_are_checked(kind, given, message):
    name = {"name": "m"} if kind is ServerSettings else {}
    with pytest.raises(ValueError, match=message):
        kind(**name, **given)


@pytest.mark.parametrize(
    ("gpu", "device"), [("cuda", "cuda:0"), ("xpu", "xpu:0"), ("mps", "cpu"), (None, "cpu")]
)
def test_the_device_is_a_gpu_if_there_is_one(monkeypatch, gpu, device):
    moved = []
    loaded = argparse.Namespace(model=argparse.Namespace(to=moved.append))
    monkeypatch.setattr("ngramspec.measure.models.load", lambda *args, **kwargs: loaded)
    arguments = build_parser().parse_args(["serve"])
    with nullcontext() if gpu is None else pretended(gpu):
        load_model(arguments)
    assert (moved, arguments.device) == ([device], device)


@pytest.mark.skipif(not can_pack(), reason="torch cannot pack bfloat16 weights here")
@pytest.mark.parametrize(("options", "packs"), [([], True), (["--mtp"], False)])
def test_weights_are_packed_unless_heads_draft(monkeypatch, options, packs):
    model, threads = tiny_llama().bfloat16(), []
    monkeypatch.setattr(serve, "load_model", lambda *_, **__: LoadedModel(model, None, "tiny"))
    make = "ngramspec.server.app.make_app"  # in a thread that has ended when the server begins
    monkeypatch.setattr(make, lambda *_: threads.append(current_thread()))
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: threads.append(threads[0].is_alive()))
    assert main(["serve", "--port", "0", "--shared", "0", "--device", "cpu", *options]) == 0
    assert (hasattr(model.model.layers[0].mlp.up_proj, "weight"), threads[1]) == (not packs, False)


def test_a_port_is_checked_before_a_model_is_loaded(capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        error = error_of(capsys, "--port", port)
    assert error.startswith("ngramspec serve: --host, --port: Address already in use (")
    assert port in error
