"""Train with GRPO, and draft the answers of each epoch from those of the epochs before.

    pip install trl datasets
    python grpo.py

Answers, rewards and gradients are those of plain sampling with the same seed. The store keeps as
many tokens as MAX_AGE epochs have at most, so older answers are overwritten. Output with a 0.5B
model, before the trainer's metrics::

    epoch 1: 1.43 tokens per forward
    epoch 2: 2.60 tokens per forward
    epoch 3: 2.13 tokens per forward
"""

import argparse
import tempfile

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

import ngramspec

PROMPTS = [
    "What is 17 * 24? Think step by step.",
    "Write a Python function that returns the n-th Fibonacci number.",
    "A train travels 60 km in 45 minutes. How fast is it in km/h?",
    "Write a Python function that checks whether a word is a palindrome.",
]
ANSWERS = 4  # to each prompt
MAX_AGE = 2  # epochs
BYTES_PER_TOKEN = 29  # of a store


def brevity(completions, **_):
    """Reward short answers."""
    return [-len(each[0]["content"]) / 100 for each in completions]


class EachEpoch(TrainerCallback):
    """Prints how the answers of an epoch were drafted."""

    def __init__(self, speculator):
        self.speculator = speculator

    def on_epoch_end(self, args, state, control, **_):
        stats = self.speculator.stats
        print(f"epoch {state.epoch:.0f}: {stats.tokens_per_call:.2f} tokens per forward")
        self.speculator.reset()


def main():
    """Train for some epochs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="do not draft")
    options = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(options.model, dtype="float32")
    epoch = len(PROMPTS) * ANSWERS * options.max_new_tokens * BYTES_PER_TOKEN
    store = ngramspec.SharedStore(MAX_AGE * epoch, namespace_bytes=MAX_AGE * epoch)
    speculator = ngramspec.Speculator(stores=[store["answers"]])
    settings = {
        **{"num_train_epochs": options.epochs, "per_device_train_batch_size": ANSWERS},
        **{"num_generations": ANSWERS, "max_completion_length": options.max_new_tokens},
        **{"temperature": 0.7, "learning_rate": 1e-6, "bf16": False},
        **{"report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True},
    }
    with tempfile.TemporaryDirectory() as folder:
        trainer = GRPOTrainer(
            model=model,
            reward_funcs=brevity,
            args=GRPOConfig(output_dir=folder, **settings),
            train_dataset=Dataset.from_list(
                [{"prompt": [{"role": "user", "content": each}]} for each in PROMPTS]
            ),
            processing_class=AutoTokenizer.from_pretrained(options.model),
            callbacks=[EachEpoch(speculator)],
        )
        if not options.plain:
            ngramspec.enable(trainer.model, speculator)
        trainer.train()


if __name__ == "__main__":
    main()
