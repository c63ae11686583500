"""The types that greedy steps use are those that docs/internals/index.md lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from conftest import tiny_llama

from ngramspec import Speculator
from ngramspec.decoding.loop import DecodeLoop

ROOT = Path(__file__).parents[2]
MAX_TYPES = 20
ROW = re.compile(r"^- `([\w/]+)\.py`: (.*)$", re.MULTILINE)  # a file and its types


def test_the_internals_list_the_types_of_a_greedy_step(monkeypatch):
    found: set[tuple[str, str]] = set()
    steps = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        owner = frame.f_locals.get("self") if event == "call" else None
        for kind in type(owner).__mro__:  # tests subclass the cost tracker
            if kind.__module__.startswith("ngramspec."):
                place = kind.__module__.removeprefix("ngramspec.").replace(".", "/")
                if not place.startswith("_native"):
                    found.add((kind.__name__, place))
                return

    def advance(loop: DecodeLoop) -> bool:
        nonlocal steps
        steps += 1
        if steps == 1:  # the prefill
            return original(loop)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            return original(loop)
        finally:
            sys.setprofile(before)

    original = DecodeLoop.advance
    monkeypatch.setattr(DecodeLoop, "advance", advance)
    prompt = torch.tensor([[5, 6, 7, 8, 9, 5, 6, 7]])
    tiny_llama().generate(prompt, custom_generate=Speculator(), max_new_tokens=24, do_sample=False)
    assert steps > 2
    text = (ROOT / "docs/internals/index.md").read_text()
    rows = ((place, re.findall(r"`(\w+)`", names)) for place, names in ROW.findall(text))
    listed = {(each, place) for place, names in rows for each in names}
    assert found == listed
    assert len(listed) <= MAX_TYPES
