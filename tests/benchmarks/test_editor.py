"""The requests of ``python -m benchmarks editor``, without a server."""

from __future__ import annotations

import argparse
import random

import pytest

from benchmarks.editor import PAUSE, Function, cursors, type_function

AREA = Function(
    "a.py", "area", "import math\n", "def area(r):\n    return math.pi * r**2\n", "\n# end"
)


def given(**options):
    return argparse.Namespace(**{"mode": "pauses", "requests": 3, "burst": 2, **options})


def test_undo_asks_again_at_the_place_before():
    one, two, three = (burst for (burst,) in cursors(AREA, given(), random.Random(0)))
    undone = cursors(AREA, given(mode="undo"), random.Random(0))
    assert undone == [[two], [one], [three], [two]]


@pytest.mark.parametrize("infill", [True, False])
def test_a_prompt_ends_at_the_cursor_or_has_the_text_after_the_function(infill, monkeypatch):
    monkeypatch.setattr("benchmarks.editor.time.sleep", lambda seconds: seconds == PAUSE)
    at = AREA.text.index("math.pi")
    asked = []

    def ask(prompt, gap):
        asked.append(prompt)
        return "math.pi * r**2\n# more", 0.1, 0.2

    options = given(infill=infill, context=100)
    (answer,) = type_function(ask, "ngramspec", AREA, [[at]], options)
    typed = AREA.before + AREA.text[:at]
    prompt = f"<|fim_prefix|>{typed}<|fim_suffix|>{AREA.after}<|fim_middle|>" if infill else typed
    assert asked == [prompt]
    assert answer.right
    (wrong,) = type_function(ask, "ngramspec", AREA, [[at + 1]], options)
    assert not wrong.right
