"""``python -m benchmarks models``, on a tiny model."""

from __future__ import annotations

import json

import gguf_file
from command import exit_code

from benchmarks.__main__ import main


def test_every_way_generates_the_baselines_text_and_a_run_is_continued(tmp_path, capsys):
    gguf_file.write(tmp_path / "tiny.gguf")
    out = tmp_path / "models.json"

    def rows(*options):
        command = ["models", "--model", str(tmp_path / "tiny.gguf"), "--dtype", "float32"]
        command += ["--max-new-tokens", "12", "--json", str(out), "--prompts-per-task", "1"]
        assert exit_code([*command, *options], main) == 0
        return json.loads(out.read_text())["rows"]

    first = rows("--tasks", "tools")
    assert [row["mode"] for row in first] == ["greedy", "sampled"]
    for row in first:
        ways = {"plain", "lookup 3", "lookup", "ours"}
        assert row["tokens_per_second"].keys() == row["same_as_plain"].keys() == ways
        assert row["same_as_plain"]["ours"]
        assert row["model"] == "tiny"
    assert all(first[0]["same_as_plain"].values())
    assert rows("--tasks", "tools") == first  # with the same times: nothing is measured again
    assert rows("--tasks", "chat", "--seconds", "0") == first
    assert "not done: run it again" in capsys.readouterr().out
    *before, batch = rows("--tasks", "tools", "--batch", "2", "--mode", "greedy")
    assert before == first
    assert batch["batch"] == 2
    assert batch["tokens_per_second"].keys() == {"plain", "ours"}
    assert batch["same_as_plain"]["ours"]
    long = rows("--texts", "long", "--lengths", "300", "--tasks", "answer", "--mode", "greedy")[-1]
    assert long["task"] == "answer 300"
    assert long["prompt_tokens"] in range(300, 450)
