"""TRL's trainers: a run with speculation is the run without it."""

from __future__ import annotations

import pytest
import torch

trl = pytest.importorskip("trl", reason="make test-frameworks")

from any_model import tiny_chat  # noqa: E402
from datasets import Dataset  # noqa: E402

import ngramspec  # noqa: E402
from ngramspec import Speculator  # noqa: E402

PROMPTS = ["One, two, three. One, two,", "abcabcabcab", "x y z x y z x", "the cat, the cat, the"]
STEPS = 20


def vowels(completions, **_):
    return [sum(each in "aeiou" for each in text) / (1 + len(text)) for text in completions]


def test_grpo_samples_and_learns_the_same(tmp_path):
    runs = []
    for drafts in (False, True):
        model, tokenizer = tiny_chat()
        tokenizer.eos_token = "~"
        seen = []

        def reward(completions, seen=seen, **kwargs):
            seen.append(list(completions))
            return vowels(completions)

        settings = trl.GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=4,
            max_completion_length=24,
            max_steps=STEPS,
            learning_rate=1e-3,
            logging_steps=1,
            temperature=0.7,
            report_to=[],
            use_cpu=True,
            save_strategy="no",
            bf16=False,
            gradient_checkpointing=False,
            seed=3,
        )
        torch.manual_seed(3)
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=reward,
            args=settings,
            train_dataset=Dataset.from_dict({"prompt": PROMPTS * 8}),
            processing_class=tokenizer,
        )
        speculator = Speculator(gamma=4)
        if drafts:
            ngramspec.enable(trainer.model, speculator)
        trainer.train()
        log = [
            {name: each[name] for name in ("loss", "grad_norm", "reward", "reward_std")}
            for each in trainer.state.log_history
            if "grad_norm" in each
        ]
        runs.append((seen, log))
    assert speculator.stats.runs >= STEPS / 4
    assert speculator.stats.accepted > 100
    assert runs[0][0] == runs[1][0]
    assert runs[0][1] == runs[1][1]
    assert len(runs[0][1]) == STEPS
