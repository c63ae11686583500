"""A tiny trained T5 that corrects spelling, so that an encoder-decoder's acceptance is real.

Its tokens are words of five classes: 218 right ones, and three misspellings of each. A grammar
makes the sentences, and every seventh word of the input is misspelt. ``python tests/speller.py``
trains the model and writes ``tests/data/speller.safetensors``, in ten minutes on one core.
"""

from __future__ import annotations

import random
from itertools import accumulate, pairwise
from pathlib import Path

import torch

WEIGHTS = Path(__file__).parent / "data" / "speller.safetensors"


PAD, EOS, FIRST = 0, 1, 2  # the right words follow from FIRST on, then the misspellings
SIZES = (62, 86, 46, 18, 6)  # adjectives, nouns, verbs, prepositions, conjunctions
ENDS = [FIRST, *(FIRST + end for end in accumulate(SIZES))]
ADJECTIVE, NOUN, VERB, PREPOSITION, CONJUNCTION = (range(*each) for each in pairwise(ENDS))
RIGHT = sum(SIZES)
WAYS = 3
MISSPELT = 1 / 7
VOCAB = FIRST + (1 + WAYS) * RIGHT


def sentence(rng: random.Random) -> tuple[list[int], list[int]]:
    """A misspelt sentence and the right one, 8 to 26 words and EOS each."""
    parts = []
    for clause in range(rng.randint(1, 3)):
        parts += [CONJUNCTION] if clause else []
        parts += [ADJECTIVE, NOUN, VERB, ADJECTIVE, NOUN, PREPOSITION, ADJECTIVE, NOUN]
    right = [rng.choice(part) for part in parts]
    given = [
        token + RIGHT * rng.randint(1, WAYS) if rng.random() < MISSPELT else token
        for token in right
    ]
    return [*given, EOS], [*right, EOS]


def sentences(seed: int, count: int) -> list[tuple[list[int], list[int]]]:
    """Pairs of a misspelt and the right sentence; the training uses seed 0."""
    rng = random.Random(seed)
    return [sentence(rng) for _ in range(count)]


def build():
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    sizes = {"vocab_size": VOCAB, "d_model": 64, "d_kv": 16, "d_ff": 128}
    tokens = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD}
    config = T5Config(**sizes, **tokens, num_layers=2, num_heads=4, dropout_rate=0.0)
    return T5ForConditionalGeneration(config)


def load():
    from safetensors.torch import load_file

    model = build()
    weights = {name: tensor.float() for name, tensor in load_file(WEIGHTS).items()}
    model.load_state_dict(weights, strict=False)  # what is tied is stored once
    model.tie_weights()
    return model.eval()


def padded(rows: list[list[int]], *, left: bool = False, fill: int = PAD) -> torch.Tensor:
    longest = max(len(row) for row in rows)
    gaps = [[fill] * (longest - len(row)) for row in rows]
    joined = [gap + row if left else row + gap for gap, row in zip(gaps, rows, strict=True)]
    return torch.tensor(joined)


def train(steps: int = 4000, rows: int = 64) -> None:
    """Train from scratch and write the weights, in float16."""
    from safetensors.torch import save_file

    torch.set_num_threads(1)
    model, rng = build().train(), random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, total_steps=steps)
    for step in range(steps):
        pairs = [sentence(rng) for _ in range(rows)]
        inputs = padded([given for given, _ in pairs])
        labels = padded([right for _, right in pairs], fill=-100)
        loss = model(input_ids=inputs, attention_mask=inputs != PAD, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(step, round(loss.item(), 4), flush=True)
    weights = {name: value.detach().half() for name, value in model.named_parameters()}
    WEIGHTS.parent.mkdir(exist_ok=True)
    save_file(weights, WEIGHTS)
    print(f"{WEIGHTS.stat().st_size} bytes in {WEIGHTS}")


if __name__ == "__main__":
    train()
