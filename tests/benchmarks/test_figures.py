"""Tables of README and docs equal their raw files; ``make figures`` measures what is outdated."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from benchmarks import chart, figures
from benchmarks.__main__ import build_parser as benchmark_parser
from benchmarks.figures import MARKED, RESULTS, ROOT, pages, raws, rendered, source_hash, stale
from benchmarks.renderers import batches, markdown, models, tasks
from benchmarks.tables import TABLES, Table
from ngramspec.cli import build_parser

MARKS = [(found, page) for page, _ in pages() for found in MARKED.finditer(page.read_text("utf-8"))]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_equals_its_raw_files(name):
    for found, page in MARKS:
        if found["name"] == name:
            assert found["table"] == rendered(name, page), "run: make figures"


def test_pictures_show_their_raw_files():
    for path, version, _ in figures.pictures():
        assert figures.is_drawn(path, version), "run: python -m benchmarks figures --pages"


def test_the_marked_tables_are_those_that_are_known():
    assert {found["name"] for found, _ in MARKS} == TABLES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_sources_and_commands_of_a_table_exist(name):
    for stem, (module, *words) in TABLES[name].commands.items():
        assert [each for each in TABLES[name].sources_of(stem) if not (ROOT / each).exists()] == []
        assert any("OUT" in word for word in words)
        if module == "benchmarks":
            benchmark_parser(words[0]).parse_args(words[1:])
        elif module == "ngramspec":
            build_parser().parse_args(words)
        else:
            assert module == "pytest"


def test_outdated_tables_are_listed():
    """A warning, and an error for a release."""
    outdated = [name for name, table in TABLES.items() if stale(table)]
    message = f"tables whose sources have changed since: {', '.join(outdated)}; run: make figures"
    if os.environ.get("RELEASE_CHECK"):
        assert not outdated, message
    elif outdated:
        warnings.warn(message, stacklevel=1)


def arguments(**given) -> argparse.Namespace:
    known = {"tables": ["small"], "again": False, "pages": False, "stale": False}
    return argparse.Namespace(**known | given)


@pytest.fixture
def small(tmp_path, monkeypatch):
    """A table of one raw file, which the tests' module writes, in a folder without pages."""
    script = tmp_path / "small_benchmark.py"
    script.write_text("import sys\nopen(sys.argv[1], 'w').write('{\"value\": 3}')\n")
    (tmp_path / "source.py").write_text("first")
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    monkeypatch.setattr(figures, "pages", lambda: [])
    table = Table(
        {"raw": ("small_benchmark", "OUT")},
        ("source.py",),
        lambda raw: markdown(("value",), [(raw["value"],)]),
    )
    monkeypatch.setitem(TABLES, "small", table)
    return table


def test_a_table_is_measured_once_until_its_sources_change(small, tmp_path, monkeypatch, capfd):
    sentence = replace(small, sentence=True, render=lambda raw: f"{raw['value']} of 9.")
    monkeypatch.setitem(TABLES, "sentence", sentence)
    assert stale(small)
    assert figures.rendered("small", tmp_path / "page.md") == "Not measured yet."
    assert figures.rendered("sentence", tmp_path / "page.md") == ""
    assert figures.run(arguments()) == 0
    found = json.loads((tmp_path / "raw.json").read_text())
    assert found["value"] == 3
    assert found["figure"].keys() == {"sources", "minutes", "commit", "where"}
    assert found["figure"]["where"]["instructions"]
    assert "raw.json took 0.0 minutes" in capfd.readouterr().out
    assert figures.rendered("small", tmp_path / "page.md").startswith("| value |\n| --- |\n| 3 |\n")
    assert figures.rendered("sentence", tmp_path / "page.md") == "3 of 9."
    assert figures.run(arguments()) == 0
    assert "raw.json is up to date" in capfd.readouterr().out
    assert figures.run(arguments(stale=True)) == 0
    (tmp_path / "source.py").write_text("second")
    assert figures.run(arguments(stale=True)) == 1
    assert capfd.readouterr().out == "small: its sources have changed since\n"


def test_a_picture_is_drawn_once_until_its_raw_files_change(small, tmp_path, monkeypatch):
    drawn = []

    def draw(path, version, raw):
        drawn.append(raw["value"])
        path.write_text(f"{raw['value']} {version}")

    monkeypatch.setitem(TABLES, "small", replace(small, draw=draw))
    monkeypatch.setattr(figures, "PICTURES", tmp_path)
    for value in (3, 3, 4):
        (tmp_path / "raw.json").write_text(json.dumps({"value": value}))
        assert figures.run(arguments(pages=True)) == 0
    assert drawn == [3, 4]
    assert (tmp_path / "small.svg").read_text().startswith("4 ")


def test_the_hash_depends_on_names_and_contents_of_source_files(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    folder, found = tmp_path / "folder", []
    folder.mkdir()
    for name, text in (("a.py", "1"), ("a.so", "1"), ("a.py", "2"), ("b.py", "1")):
        (folder / name).write_text(text)
        found.append(source_hash(["folder"]))
    (folder / "a.py").rename(folder / "c.py")
    assert found[0] == found[1]
    assert len({*found, source_hash(["folder"])}) == 4


def test_comments_docstrings_and_formatting_do_not_change_the_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "ROOT", tmp_path)

    def hashed(text: str, name: str = "a.py") -> str:
        (tmp_path / name).write_text(text)
        return source_hash([name])

    first = hashed("class A:\n    def f(self, x: int = 1):\n        return [x, 'two']\n")
    same = """'Module.'
class A:
    "Class."

    def f(self, x: int = 1):
        # a reason
        "Method."
        return [
            x,
            "two",
        ]
"""
    assert hashed(same) == first
    changes = ("= 1", "= 2"), ("two", "2"), (": int", ""), ("def", "async def"), ("'M", "a: int #")
    assert len({first, *(hashed(same.replace(*pair)) for pair in changes)}) == 1 + len(changes)
    assert hashed("one = 1", "a.pyx") != hashed("one = 1  # a reason", "a.pyx")


def test_raw_files_name_no_folder_of_the_machine():
    texts = "".join(path.read_text() for path in RESULTS.glob("*.json"))
    assert re.findall(r"/(?:tmp|home|root|work|Users)/[^\"]*", texts) == []
    assert raws(TABLES["agents"]).keys() == {"agents"}
    assert sys.executable not in str(TABLES)


KNOWN = {"model": "SmolLM2-135M-Instruct", "dtype": "float32", "mode": "greedy", "task": "edit"}
KNOWN |= {"tokens_per_call": 2.0, "same_as_plain": {"ours": True}, "prompt_tokens": 210}
FIRST = {**KNOWN, "tokens_per_second": {"plain": 10, "lookup 3": 10, "lookup": 20, "ours": 40}}
LAST = {**KNOWN, "tokens_per_second": {"plain": 10, "lookup 3": 20, "lookup": 5, "ours": 8}}
LONG = {**LAST, "task": "answer 4000", "prompt_tokens": 4010}
SVG = "{http://www.w3.org/2000/svg}text"


def test_the_charts_show_models_tasks_and_means(tmp_path):
    """Two prompts, one of them in three bands more, and a model that is not shown."""
    path, other = tmp_path / "chart.svg", {**FIRST, "model": "another"}
    rows = [FIRST, LAST, {**FIRST, "mode": "sampled"}, {**FIRST, "dtype": "bfloat16"}, LONG, other]

    def drawn(rows, **options) -> list[str]:
        chart.draw(path, "the version", {"rows": rows}, **options)
        return [each.text for each in ElementTree.parse(path).getroot().iter(SVG)]

    said = drawn([*rows[:-2], other], greedy=True)
    for word in ("SmolLM2-135M", "edit code", "1.79", "1x"):
        assert said.count(word) == 1, word
    assert not {"4.00", "tool calls", "greedy, float32"} & {*said}
    assert "the version" in path.read_text()
    assert path.read_text().count("#ffffff; stroke: #24292f") == 5  # dots, and one in the legend
    said = drawn(rows)
    bands = ["greedy, float32", "sampled, float32", "greedy, bfloat16"]
    bands += ["greedy, float32, long documents (tokens)"]
    assert [each for each in said if each in bands] == bands
    assert (said.count("4.00"), said.count("answer (4,000)")) == (2, 1)
    same = "Calls with plain `generate`'s text: 4 of 4 in float32, 1 of 1 in bfloat16."
    assert models({"rows": rows}).endswith(same)


def test_charts_have_other_colours_on_dark_pages(tmp_path):
    path = tmp_path / "chart.svg"
    chart.draw(path, "the version", {"rows": [FIRST]})
    style, shown = re.fullmatch("(.*)</style>(.*)", path.read_text(), re.DOTALL).groups()
    assert "@media (prefers-color-scheme: dark)" in style
    for part, colour in re.findall("(fill|stroke): (#[0-9a-f]{6})", shown):
        assert f'[style*="{part}: {colour}"] {{{part}: {chart.DARK[colour]} !important}}' in style


def test_the_table_of_tasks_has_means_worst_prompts_and_losses():
    sampled = {**LAST, "mode": "sampled"}
    raw, long = {"rows": [FIRST, LAST, sampled]}, {"rows": [LONG]}
    assert tasks(raw, long).splitlines() == [
        "| task | prompt lookup | ngramspec | its worst prompt | its best prompt |",
        "| --- | --- | --- | --- | --- |",
        "| edit code | 1.41 | 1.79 | 0.80 | 4.00 |",
        "| long documents | 2.00 | 0.80 | 0.80 | 0.80 |",
        "",
        "ngramspec was slower than plain `generate` on 2 of 3 calls (prompt lookup: 0), and with"
        " the models' own sampling settings on 1 of 1 calls (prompt lookup: 0).",
        "",
        "Speedups over plain `generate` of whole greedy calls in float32, as geometric means:"
        " SmolLM2-135M (210 to 210 prompt tokens); long documents: SmolLM2-135M (4,010 to 4,010"
        " prompt tokens).",
    ]


def test_the_table_of_batches_has_their_limit():
    batch = {**LONG, "tokens_per_second": {"plain": 10, "ours": 15}}
    assert "| SmolLM2-135M | answer | 4,000 | 1.50 | 2.00 |" in batches({"rows": [batch]})
