"""Which models, processors, caches and batches give plain ``generate``'s text: tried one by one.

Every cell runs a tiny random model of a real class, greedily in float32, plainly and with drafts
that are half right, and compares the ids.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ngramspec import Draft, Drafter, DraftSession, Speculator, UnsupportedError, generate
from ngramspec.draft import Float32, Int32

VOCAB, NEW_TOKENS, GAMMA, RIGHT = 61, 24, 5, 0.6
MOST_PARAMETERS = 5_000_000
PROMPTS = [[5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 11, 12, 5, 6], [3, 4, 3, 4, 3, 4, 9, 3]]
# Sizes of a tiny model, by the names that configurations have for them.
SMALL: dict[str, Any] = {
    **dict.fromkeys(("vocab_size",), VOCAB),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "embed_dim", "dim", "hidden_dim"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "encoder_ffn_dim"), 48),
    **dict.fromkeys(
        ("decoder_ffn_dim", "ffn_hidden_size", "n_inner", "shared_intermediate_size"), 48
    ),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "v_head_dim", "attention_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "qk_head_dim"), 8),
    "rotary_dim": 4,
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("moe_num_experts", "num_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_k", "moe_topk", "experts_per_token"), 2),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_size"), 16),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"), 256),
    **dict.fromkeys(("initializer_range", "init_std"), 0.5),
    "word_embed_proj_dim": 32,
    "sliding_window": 8,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "is_decoder": True,
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One thing tried.

    Attributes:
        model: the model's class.
        what: what was varied: "batch 1", "batch 2", a cache, a processor.
        outcome: "identical", "refused", "wrong", or "not built" (plain generate does not run on
            the tiny configuration either).
        detail: the refusal's or the error's first line; of a wrong one, the first difference.
    """

    model: str
    what: str
    outcome: str
    detail: str = ""


class HalfRight(Drafter):
    """Knows what each row will say, and is right at each token with probability ``RIGHT``."""

    tiers = ("half right",)

    def __init__(self, texts: list[list[int]], seed: int = 0) -> None:
        self.texts = texts
        self.rng = np.random.default_rng(seed)
        self.starts = 0

    def start(self, tokens: Int32) -> DraftSession:
        owner, row = self, self.starts % len(self.texts)
        self.starts += 1

        class Session(DraftSession):
            at = 1  # of the generated tokens: the prefill's is among ``tokens``

            def propose(
                self, gamma: int, cost: Float32 | None = None, *, tree: bool = False
            ) -> Draft:
                guess = np.array(owner.texts[row][self.at : self.at + gamma], np.int32)
                wrong = owner.rng.random(len(guess)) >= RIGHT
                return Draft(np.where(wrong, (guess + 1) % VOCAB, guess).astype(np.int32))

            def extend(self, tokens: Int32) -> None:
                self.at += len(tokens)

        return Session()


def walk() -> Iterator[Cell]:
    """Every causal and sequence-to-sequence class of the installed transformers, batch 1 and 2."""
    from transformers.models.auto import modeling_auto

    for mapping in (
        modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING,
        modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    ):
        for config in sorted(mapping.keys(), key=lambda each: str(each.__name__)):
            kinds = mapping[config]
            for kind in kinds if isinstance(kinds, tuple) else (kinds,):
                yield from try_class(kind, config)


FAMILIES = (
    "LlamaForCausalLM",
    "GPT2LMHeadModel",
    "MistralForCausalLM",
    "Gemma2ForCausalLM",
    "T5ForConditionalGeneration",
    "BartForConditionalGeneration",
)
CACHES: dict[str, dict[str, Any]] = {
    "dynamic": {},
    "static": {"cache_implementation": "static"},
}
PROCESSORS: dict[str, dict[str, Any]] = {
    "none": {},
    "repetition penalty": {"repetition_penalty": 1.3},
    "no repeated 3-grams": {"no_repeat_ngram_size": 3},
    "bad words": {"bad_words_ids": [[7], [8, 9]]},
    "encoder penalty": {"encoder_repetition_penalty": 1.3},
    "beams": {"num_beams": 2},
}
ROWS = (1, 2, 8)


def matrix() -> Iterator[Cell]:
    """A few families with every cache, processor and batch size."""
    import transformers

    for name in FAMILIES:
        kind = getattr(transformers, name)
        model = build(kind, kind.config_class)
        for cache, first in CACHES.items():
            for processor, second in PROCESSORS.items():
                for rows in ROWS:
                    what = f"{cache} cache, {processor}, batch {rows}"
                    yield compare(name, what, model, rows, **first, **second)


def try_class(kind: Any, config: Any) -> Iterator[Cell]:
    """The cells of one class: each batch size."""
    from transformers import GenerationMixin

    name = kind.__name__
    if getattr(kind, "generate", None) is not GenerationMixin.generate:
        yield Cell(name, "any", "refused", "it overrides generate, or has none")
        return
    try:
        model = build(kind, config)
    except Exception as error:
        yield Cell(name, "any", "not built", _line(error))
        return
    for rows in (1, 2):
        yield compare(name, f"batch {rows}", model, rows)


def build(kind: Any, config: Any) -> Any:
    """A tiny model of a class, in eval mode."""
    named = set(inspect.signature(config.__init__).parameters)
    settings = {key: SMALL[key] for key in SMALL if key in named | set(config().to_dict())}
    kinds = getattr(config(), "layer_types", None)
    if isinstance(kinds, list) and "layer_types" in named:
        settings["layer_types"] = [*dict.fromkeys(kinds), *kinds][:2]  # one of each, if it can be
    with torch.device("meta"):
        size = sum(each.numel() for each in kind(config(**settings)).parameters())
    if size > MOST_PARAMETERS:
        raise ValueError(f"{size / 1e6:.0f} million parameters are too many to try")
    torch.manual_seed(3)
    model = kind(config(**settings)).eval().float()
    model.generation_config.eos_token_id = None
    model.generation_config.forced_eos_token_id = None
    model.generation_config.pad_token_id = 0
    if model.config.is_encoder_decoder:
        model.generation_config.decoder_start_token_id = 2
    return model


def compare(name: str, what: str, model: Any, rows: int, **kwargs: Any) -> Cell:
    """One cell: plain ``generate`` against drafts that are half right."""
    inputs = prompts(rows)
    kwargs = {"do_sample": False, "max_new_tokens": NEW_TOKENS} | kwargs
    try:
        plain = model.generate(**inputs, **kwargs)
    except Exception as error:
        return Cell(name, what, "not built", _line(error))
    new = plain[:, -NEW_TOKENS:].tolist()
    try:
        speculator = Speculator(HalfRight(new), GAMMA)
        ours = generate(model, **inputs, speculator=speculator, **kwargs)
    except UnsupportedError as error:
        return Cell(name, what, "refused", _line(error))
    except Exception as error:
        return Cell(name, what, "wrong", f"{type(error).__name__}: {_line(error)}")
    if torch.equal(plain, ours):
        return Cell(name, what, "identical")
    return Cell(name, what, "wrong", _difference(plain, ours))


def prompts(rows: int) -> dict[str, torch.Tensor]:
    """One prompt, or several padded on the left, with their mask."""
    chosen = [PROMPTS[row % len(PROMPTS)] for row in range(rows)]
    longest = max(len(each) for each in chosen)
    ids = [[0] * (longest - len(each)) + each for each in chosen]
    mask = [[0] * (longest - len(each)) + [1] * len(each) for each in chosen]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}


def _difference(plain: torch.Tensor, ours: torch.Tensor) -> str:
    if plain.shape != ours.shape:
        return f"shape {tuple(ours.shape)} in place of {tuple(plain.shape)}"
    row, at = (plain != ours).nonzero()[0].tolist()
    new = at - (plain.shape[1] - NEW_TOKENS) + 1
    return f"row {row}: new token {new} is {int(ours[row, at])} in place of {int(plain[row, at])}"


def _line(error: Exception) -> str:
    return (str(error).strip().partition("\n")[0] or type(error).__name__)[:120]
