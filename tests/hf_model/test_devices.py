"""The device of a model, copies between it and the host, and the devices of new tensors."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import ngramspec
from ngramspec.hf_model.compat.devices import indices, input_device, is_transient, moved, on_host

CPU, META = torch.device("cpu"), torch.device("meta")
# Functions of torch that make a tensor on the default device if they are given none.
MAKERS = {
    *("arange", "as_tensor", "asarray", "empty", "eye", "full", "linspace", "ones", "rand"),
    *("randint", "randn", "randperm", "scalar_tensor", "tensor", "zeros"),
}


def makers(source: str) -> list[tuple[int, bool]]:
    """The lines of a source that make a tensor, and whether they name its device."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [
        (call.lineno, any(each.arg == "device" for each in call.keywords))
        for call in calls
        if ast.unparse(call.func) in {f"torch.{name}" for name in MAKERS}
    ]


def test_every_new_tensor_names_its_device():
    """So a default device changes nothing (``torch.set_default_device``)."""
    assert makers("a = torch.zeros(\n    3)\nb = torch.ones(2, device='cpu')") == [
        (1, False),
        (3, True),
    ]
    root = Path(ngramspec.__file__).parent
    found = {path: makers(path.read_text(encoding="utf-8")) for path in root.rglob("*.py")}
    unnamed = [
        f"{path}:{line}" for path, each in found.items() for line, named in each if not named
    ]
    assert unnamed == []
    assert sum(map(len, found.values())) > 20


def test_inputs_go_where_the_weights_are_unless_these_are_offloaded():
    assert input_device(SimpleNamespace(device=torch.device("cuda", 1)), CPU).index == 1
    assert input_device(SimpleNamespace(device=META), CPU) == CPU


def test_too_little_memory_of_any_device_is_no_property_of_a_model():
    apple = "MPS backend out of memory (MPS allocated: 17.9 GB). Tried to allocate 2.00 GB"
    assert is_transient(RuntimeError(apple))
    assert is_transient(torch.OutOfMemoryError("HIP out of memory"))
    assert not is_transient(RuntimeError("The size of tensor a (3) must match"))


def test_tensors_in_arguments_are_moved_and_other_values_stay():
    cache = object()
    given = {
        "mask": torch.ones(2),
        "cache": cache,
        "states": (torch.ones(1), None, [torch.ones(3)]),
    }
    found = moved(given, META)
    states = found["states"]
    tensors = [found["mask"], states[0], states[2][0]]
    assert [each.device for each in tensors] == [META] * 3
    assert (found["cache"], states[1], type(states)) == (cache, None, tuple)
    assert given["mask"].device == CPU


def test_indices_are_copied_to_each_device_once():
    on = indices([[0, 2], [1, 1]])
    assert on(CPU).tolist() == [[0, 2], [1, 1]]
    assert on(META) is on(META)
    with torch.device("meta"):
        assert indices([3])(CPU).device == CPU


class Copies(TorchDispatchMode):
    """Counts the copies that are made of tensors on meta, as if to another device."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and (kwargs or {}).get("device") == CPU:
            assert not kwargs.get("non_blocking")
            self.count += 1
            return torch.zeros(args[0].shape, dtype=args[0].dtype, device=CPU)
        return func(*args, **(kwargs or {}))


def test_several_tensors_come_to_the_host_in_one_copy():
    ids, mask = torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.tensor([[False, True]])
    last = torch.zeros((2, 0), dtype=torch.int32)
    own, others = on_host(ids, None, mask, last)
    found = [own, *others]
    assert [None if each is None else each.tolist() for each in found] == [
        *([[5, 6, 7], [8, 9, 1]], None, [[0, 1]], [[], []])
    ]
    assert {each.dtype for each in found if each is not None} == {np.dtype(np.int64)}
    with Copies() as copies:
        own, others = on_host(ids.to(META), mask.to(META), None)
        moved([ids.to(META)], CPU)
    assert copies.count == 2
    assert (own.shape, others[0].shape, others[1]) == ((2, 3), (1, 2), None)
