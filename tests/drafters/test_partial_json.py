"""What can become an array or an object is what Python's ``json`` reads."""

from __future__ import annotations

import json
import random

import pytest

from ngramspec.drafters.partial_json import PartialJson

VALUES = ["0", "-1.5e+3", "1E-2", "true", "false", "null", '""', '"a\\"\\\\b\\u00e9"', '"é{["']
LETTERS = '{}[]",:\\ \n\t01-+.eEtrufalsn"x'
LEGAL = [
    "[]",
    "{}",
    " \n[1, -0.5e-7, [ ], { }]",
    '{"a" : [true,false , null], "": {"\\u12aF": "\\n/"}}',
]


def value(rng, depth):
    kind = rng.choice("[{.") if depth else "."
    space = rng.choice(["", " ", "\n "])
    if kind == ".":
        return rng.choice(VALUES)
    inner = [value(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if kind == "{":
        inner = [f'"{rng.choice("abc")}"{space}:{space}{each}' for each in inner]
    return kind + space + f"{space},{space}".join(inner) + space + ("]" if kind == "[" else "}")


def end_of(text):
    """Where the array or object that a text begins with ends, by ``json``; None: nowhere."""
    begin = len(text) - len(text.lstrip())
    if text[begin : begin + 1] not in ("[", "{"):
        return None
    try:
        return json.JSONDecoder().raw_decode(text, begin)[1]
    except ValueError:
        return None


def read(text, size=1):
    json = PartialJson(200)
    for at in range(0, len(text), size):
        json.read(text[at : at + size])
    return json


def end_in(text):
    """Where the reader finds the end; None: nowhere."""
    json = read(text)
    return len(text) - len(json.space) if json.state == "done" else None


@pytest.mark.parametrize("text", LEGAL)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_all_that_begins_json_is_legal(text, size):
    for end in range(len(text)):
        assert read(text[:end], size).state not in ("done", "invalid")
    whole = read(f"{text} and more", size)
    assert (whole.state, whole.space) == ("done", " and more")


def test_it_reads_what_json_reads():
    rng, whole = random.Random(0), 0
    for _ in range(3000):
        letters = list(value(rng, 3))
        for _ in range(rng.randint(0, 2)):
            at = rng.randrange(len(letters))
            letters[at : at + rng.randint(0, 1)] = rng.choice(LETTERS)
        text = "".join(letters)
        assert end_in(text) == end_of(text)
        whole += end_of(text) is not None
    assert 500 < whole < 2500


WRONG = [
    *("[1}", '{"a":1]', "{]", "[}", "[1 2", "[1.e", "[--", "[+", "[1e5.", '["\\u12g', "[nulll"),
    *('{"a" 1', "{1", "[1,]", '{"a":1,}', "[01", "[tru,", '["\\x', '["\n', "x", '"', "[-,"),
]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_not_legal_is_seen_at_the_letter(text):
    assert read(text[:-1]).state != "invalid"
    assert read(text).state == "invalid"


def test_the_depth_is_bounded():
    assert read("[" * 200).state == "value"
    assert read("[" * 201).state == "invalid"


def test_values_have_paths():
    json = read('\n{"a": [1, {"b":"x\\n"}], "c" : "d')
    assert json.values == {("a",): "1", ("a", "b"): '"x\\n"'}
    assert (json.state, json.partial, json.path) == ("string", "d", ("c",))
    assert json.style == {"": "\n", ":": " ", ",": " "}
