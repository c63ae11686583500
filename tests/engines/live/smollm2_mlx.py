"""Write SmolLM2-135M-Instruct as a float32 folder that mlx-lm loads. It needs no torch.

python smollm2_mlx.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
from smollm2_gguf import source
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

HEADS, KEY_HEADS, LAYERS = 9, 3, 30
CONFIG = {
    **{"model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152},
    **{"num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "rms_norm_eps": 1e-5},
    **{"num_key_value_heads": KEY_HEADS, "rope_theta": 100000.0, "tie_word_embeddings": True},
}
NAMES = {  # in a layer
    **{"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
    **{f"attn_{each}": f"self_attn.{each[0]}_proj" for each in ("q", "k", "v", "output")},
    **{f"ffn_{each}": f"mlp.{each}_proj" for each in ("gate", "up", "down")},
}
OTHERS = {"token_embd": "embed_tokens", "output_norm": "norm"}
CONTROL = 3  # GGUF's type of special tokens


def write(folder: Path) -> Path:
    """The folder, written unless it is there."""
    if (folder / "config.json").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    reader, weights = GGUFReader(source()), {}
    for tensor in reader.tensors:
        parts = tensor.name.removesuffix(".weight").split(".")
        known = f"layers.{parts[1]}.{NAMES[parts[2]]}" if parts[0] == "blk" else OTHERS[parts[0]]
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        heads = {"attn_q": HEADS, "attn_k": KEY_HEADS}.get(parts[-1])
        if heads is not None:  # llama.cpp rotates neighbours, mlx-lm the halves of a head
            values = values.reshape(heads, -1, 2, values.shape[1]).swapaxes(1, 2)
            values = values.reshape(-1, values.shape[-1])
        weights[f"model.{known}.weight"] = mx.array(values)
    mx.save_safetensors(str(folder / "model.safetensors"), weights, {"format": "mlx"})
    field = {name: reader.fields[f"tokenizer.ggml.{name}"].contents() for name in FIELDS}
    words, merges = field["tokens"], [tuple(each.split(" ")) for each in field["merges"]]
    tokenizer = Tokenizer(BPE({word: at for at, word in enumerate(words)}, merges))
    digits, level = pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    special = [w for w, kind in zip(words, field["token_type"], strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in special])
    end = words[int(field["eos_token_id"])]
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end).save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


FIELDS = ("tokens", "merges", "token_type", "eos_token_id")

if __name__ == "__main__":
    print(write(Path(sys.argv[1])))
