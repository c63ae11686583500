"""Linear layers of bfloat16 models with weights packed for the CPU, by torch's oneDNN operators."""

from __future__ import annotations

from collections import Counter
from functools import partial
from platform import machine
from typing import Any

import torch


def can_pack() -> bool:
    """Return whether this torch can multiply by packed bfloat16 weights here: an x86 processor."""
    x86, built = machine() in ("x86_64", "AMD64"), torch._C._has_mkldnn
    return x86 and built and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_linear_layers(model: Any) -> None:
    """Store a bfloat16 model's linear weights in the order in which an x86 CPU multiplies by them.

    Products with few positions take less time than with torch's order. The layers' own weights are
    released, except the output layer's, so afterwards the model can only generate. It stays as it
    is on other devices, in other dtypes, and if it reads a layer's weights in its own code.
    """
    operators = torch.ops.mkldnn
    if not can_pack() or model.device.type != "cpu":
        return
    modules, head = list(model.modules()), model.get_output_embeddings()
    users = Counter(id(each) for module in modules for each in module.parameters(recurse=False))
    packed = {}
    for module in modules:
        if type(module) is torch.nn.Linear and module.weight.dtype == torch.bfloat16:
            weight = operators._reorder_linear_weight(module.weight.detach(), 1)
            multiply = partial(_multiply, operators._linear_pointwise, weight, module.bias)
            vars(module)["forward"] = multiply
            packed[module] = weight
            if module is not head and users[id(module.weight)] == 1:
                del module.weight
    ids = torch.zeros(1, 1, dtype=torch.long, device=model.device)
    try:
        with torch.inference_mode():
            model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=1)
    except AttributeError:  # a weight that is released
        for module, weight in packed.items():
            del module.forward
            if not hasattr(module, "weight"):
                module.weight = torch.nn.Parameter(weight.to_dense(), requires_grad=False)


def _multiply(linear: Any, weight: Any, bias: Any, inputs: Any) -> Any:
    return linear(inputs, weight, bias, "none", [], "")
