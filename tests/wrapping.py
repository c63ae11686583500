"""Wrapped folders of a tiny model, and what they are asked."""

from __future__ import annotations

from pathlib import Path

import torch
from conftest import tiny_llama
from tiny_tokenizers import letters
from transformers import AutoModelForCausalLM

import ngramspec
from ngramspec.wrap import wrapped

PROMPT = torch.tensor([[5, 6, 7, 8, 5, 6, 7, 9, 5, 6]])
GREEDY = {"max_new_tokens": 24, "do_sample": False}
SETTINGS = {"drafter": "auto"}
WEIGHTS = "model.safetensors"


def save_tiny(path):
    tiny_llama().save_pretrained(path)
    letters().save_pretrained(path)
    return path


def load(path):
    return AutoModelForCausalLM.from_pretrained(path, trust_remote_code=True)


def stats_of(model):
    return wrapped.speculator_of(model).stats


def answer(model, settings):
    torch.manual_seed(1)
    kwargs = {"input_ids": PROMPT} | ({} if "generation_config" in settings else GREEDY) | settings
    return model.generate(**kwargs)


def checkout():
    return str(Path(ngramspec.__file__).parent.parent)
