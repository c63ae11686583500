"""TRL's trainers: a run with speculation is the run without it.

The model is ``trainer.model``.
"""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest
import torch
from frameworks.usual_call import tiny

import ngramspec
from ngramspec import Speculator
from ngramspec.stats import PLAIN

trl = pytest.importorskip("trl", reason="make test-frameworks")
datasets = pytest.importorskip("datasets", reason="make test-frameworks")
pytestmark = pytest.mark.filterwarnings("ignore:You are importing from 'trl.experimental'")

PROMPTS = ["One, two, three. One, two,", "abcabcabcab", "x y z x y z x", "the cat, the cat, the"]
STEPS = 20
SETTINGS = {
    **{"per_device_train_batch_size": 4, "max_steps": STEPS, "learning_rate": 1e-3},
    **{"logging_steps": 1, "save_strategy": "no", "report_to": [], "use_cpu": True, "seed": 3},
    **{"temperature": 0.7, "bf16": False},
}
LOGGED = ("loss", "grad_norm", "reward", "reward_std", "rewards/chosen", "rewards/rejected")


def trained(make, prompts, drafts):
    """The texts that were rewarded, what was logged, and the statistics."""
    model, tokenizer = tiny()
    seen = []

    def vowels(completions, **_):
        texts = [each if isinstance(each, str) else each[0]["content"] for each in completions]
        seen.append(texts)
        return [sum(letter in "aeiou" for letter in text) / (1 + len(text)) for text in texts]

    torch.manual_seed(3)
    trainer = make(
        model=model,
        reward_funcs=vowels,
        train_dataset=datasets.Dataset.from_dict({"prompt": prompts * 8}),
        processing_class=tokenizer,
    )
    speculator = Speculator(gamma=4)
    if drafts:
        ngramspec.enable(trainer.model, speculator)
    with torch.enable_grad():  # evaluations switch gradients off for the whole process
        trainer.train()
    history = [each for each in trainer.state.log_history if "grad_norm" in each]
    assert len(history) == STEPS
    log = [{name: each[name] for name in LOGGED if name in each} for each in history]
    return seen, log, speculator.stats


def test_grpo_samples_and_learns_the_same(tmp_path):
    def make(**given):
        lengths = {"num_generations": 4, "max_completion_length": 24}
        args = trl.GRPOConfig(output_dir=str(tmp_path), **SETTINGS, **lengths)
        return trl.GRPOTrainer(args=args, **given)

    texts, log, _ = trained(make, PROMPTS, drafts=False)
    ours, our_log, stats = trained(make, PROMPTS, drafts=True)
    assert ours == texts
    assert our_log == log
    assert {"loss", "grad_norm", "reward", "reward_std"} <= {*log[0]}
    assert stats.accepted > 100
    assert not stats.limits


@pytest.mark.parametrize("given", [None, {"use_cache": True}], ids=["by default", "with a cache"])
def test_online_dpo_speculates_if_it_is_given_a_cache(tmp_path, given):
    """By default it checkpoints gradients, and then generates without a cache."""
    from trl.experimental import online_dpo

    def make(**more):
        args = online_dpo.OnlineDPOConfig(
            output_dir=str(tmp_path), **SETTINGS, max_new_tokens=16, generation_kwargs=given
        )
        return online_dpo.OnlineDPOTrainer(args=args, **more)

    chats = [[{"role": "user", "content": each}] for each in PROMPTS]
    texts, log, _ = trained(make, chats, drafts=False)
    ours, our_log, stats = trained(make, chats, drafts=True)
    assert ours == texts
    assert our_log == log
    assert [each.partition(":")[0] for each in stats.limits] == ([PLAIN] if given is None else [])
    assert (stats.accepted > 0) is (given is not None)


def test_the_example_trains_as_without_drafts(tmp_path, monkeypatch, capsys):
    for each in tiny():
        each.save_pretrained(tmp_path)
    example, printed = Path(__file__).parents[2] / "examples" / "grpo.py", []
    arguments = [str(example), "--model", str(tmp_path), "--max-new-tokens", "12"]
    for more in ([], ["--plain"]):
        monkeypatch.setattr(sys, "argv", [*arguments, *more])
        with torch.enable_grad():  # as above
            runpy.run_path(str(example), run_name="__main__")
        printed.append(capsys.readouterr().out)
    drafted, plain = (
        re.findall(r"epoch \d: (\d\.\d\d) tokens per forward", each) for each in printed
    )
    assert len(drafted) == len(plain) == 3
    assert max(map(float, drafted)) > 1
    ours, theirs = (
        re.findall(r"'(train_loss|reward|entropy|num_tokens)': '([^']+)'", each) for each in printed
    )
    assert ours == theirs
    assert len(ours) == 4
