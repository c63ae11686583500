"""The benchmark of summaries: how it makes them from the recorded articles."""

from __future__ import annotations

import json

from benchmarks.summaries import FULL_STOP, SPECIAL_IDS, extracted, recorded


def test_an_extract_has_every_second_sentence():
    stop = FULL_STOP
    article = [1, 2, stop, 3, 4, stop, 5, stop, 6, 7, stop, 8]
    assert extracted(article) == [3, 4, stop, 6, 7, stop]
    assert extracted([1, 2, 3]) == []


def test_articles_come_with_their_recorded_summaries_or_with_extracts(tmp_path):
    article, summary = [9, FULL_STOP, 7, FULL_STOP, 8], [5, 6]
    trace = {"group": "news", "id": "a", "prompt": article, "output": summary}
    path = tmp_path / "traces.jsonl"
    path.write_text(json.dumps(trace) + "\n")
    moved = [token + SPECIAL_IDS for token in article]
    for extract, expected in ((False, summary), (True, [7, FULL_STOP])):
        pairs = recorded(path, "news", 1, extract=extract)
        assert pairs == [(moved, [token + SPECIAL_IDS for token in expected])]
