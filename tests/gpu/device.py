"""A pretended GPU: tensors that claim to be on ``cuda:0`` and hold their values on the CPU.

For torch such a tensor is on "meta", a device that every build has and no generation uses; Python
code sees ``cuda:0``. Inside ``pretended()`` every operation of torch

* refuses operands on two devices, where CUDA does, and float64 where Apple's GPUs do,
* is noted if the host would wait for the device in it, or copy to it without waiting,
* leaves garbage in what is copied to the host without waiting, until the next wait.

Random numbers of the device are those of a CPU's generator with the same seed.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
META = torch.device("meta")
WAIT, COPY, FETCH, FORWARD = "wait", "copy", "fetch", "forward"  # kinds of events
SKIPPED = (__file__, str(Path(torch.__file__).parent), "<")  # torch, generated code and this file
BYTES = 1 << 36  # of the device's memory
OWN = f"{Path(__file__).parents[2] / 'ngramspec'}/"

# Operations whose result's size, or decision, the host reads from the device, and how often.
READS = {
    **dict.fromkeys((aten.nonzero, aten.masked_select, aten.equal, aten.bincount), 1),
    **dict.fromkeys((aten._unique2, aten.unique_dim, aten.unique_consecutive), 1),
    aten.multinomial: 2,
}
INDEXED = (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_)
# Operations besides pointwise ones that take a CPU's tensor without dimensions as a number.
NUMBERS = (aten.fill_, aten.masked_fill, aten.masked_fill_, aten.where, aten.lift_fresh)


@dataclass(frozen=True, slots=True)
class Event:
    """A wait of the host, a copy that it does not wait for, or the beginning of a forward."""

    kind: str
    what: str = ""
    place: str = ""  # the innermost line of ngramspec, else of any code outside torch


@dataclass
class Seen:
    """The events on the device, in order."""

    events: list[Event] = field(default_factory=list)

    def count(self, kind: str = WAIT) -> int:
        return sum(each.kind == kind for each in self.events)

    def places(self, kind: str = WAIT) -> Counter[str]:
        """How often each place waited."""
        return Counter(f"{e.what} at {e.place}" for e in self.events if e.kind == kind)

    def parts(self) -> list[Seen]:
        """The events before the first forward, and from each forward to the next."""
        parts = [Seen()]
        for event in self.events:
            if event.kind == FORWARD:
                parts.append(Seen())
            else:
                parts[-1].events.append(event)
        return parts


def _place() -> str:
    frame, found = sys._getframe(2), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(SKIPPED):
            where = f"{'/'.join(Path(name).parts[-2:])}:{frame.f_lineno}"
            if name.startswith(OWN):
                return where
            found = found or where
        frame = frame.f_back
    return found


class GpuTensor(torch.Tensor):
    """A tensor on the pretended device, with its ``values`` on the CPU."""

    values: torch.Tensor
    device = torch.device("cuda", 0)
    is_cuda, is_meta = True, False
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> GpuTensor:
        if cls.device.type == "mps" and values.dtype in (torch.float64, torch.complex128):
            raise TypeError(f"the MPS framework doesn't support {values.dtype}")
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset()}
        own = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, **layout, dtype=values.dtype, device=META
        )
        own.values = values
        return own

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} outside of pretended()")

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError(f"can't convert {self.device} device type tensor to numpy")
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> GpuTensor:
        return memo.setdefault(id(self), GpuTensor(self.values.clone()))

    def __repr__(self, **_: Any) -> str:
        return f"GpuTensor({self.values!r})"


GPU = GpuTensor.device


def on_gpu(value: Any) -> Any:
    """A copy on the pretended device of a tensor, or of a model with its tied weights tied."""
    if isinstance(value, torch.Tensor):
        return GpuTensor(value.detach().clone())
    memo: dict[int, Any] = {}
    for each in (*value.parameters(), *value.buffers()):
        memo[id(each)] = GpuTensor(each.detach())
        if isinstance(each, torch.nn.Parameter):
            memo[id(each)] = torch.nn.Parameter(memo[id(each)], requires_grad=False)
    return copy.deepcopy(value, memo)


class GpuGenerator(torch.Generator):
    """A generator of the pretended device, with the numbers of a CPU's."""

    device = property(lambda self: GpuTensor.device)


def _tensors(*values: Any) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(*each)


def _bare(value: Any) -> Any:
    """The CPU's tensors in place of the device's."""
    if isinstance(value, dict):
        return {name: _bare(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_bare, value))
    return value.values if isinstance(value, GpuTensor) else value


def _wrapped(out: Any, ours: list[Any]) -> Any:
    """Results on the device; what an operation changed in place is its operand."""
    if isinstance(out, list | tuple):
        return type(out)(_wrapped(each, ours) for each in out)
    if not isinstance(out, torch.Tensor):
        return out
    same = next((each for each in ours if each.values is out), None)
    return GpuTensor(out) if same is None else same


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type in ("meta", GpuTensor.device.type)


def _refuse(what: Any, found: str) -> None:
    raise RuntimeError(f"Expected all tensors to be on the same device: {what}, {found} on the CPU")


class Gpu(TorchDispatchMode):
    """The pretended device: what its operations do, and what is seen of them."""

    name, put, make = "pretended", staticmethod(on_gpu), GpuGenerator
    device = property(lambda self: GpuTensor.device)

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()
        self.generator = GpuGenerator()
        self.embeddings: set[int] = set()  # ids of the tables whose lookup begins a forward
        self._late: list[tuple[torch.Tensor, torch.Tensor]] = []  # copies that are under way

    @contextmanager
    def watch(self, model: Any = None) -> Iterator[Seen]:
        """The events inside the block; the forwards that begin are those of ``model``."""
        before, self.seen, self.embeddings = self.seen, Seen(), set()
        if model is not None:
            self.embeddings.add(id(model.get_input_embeddings().weight.values))
        try:
            yield self.seen
        finally:
            self.seen = before

    def note(self, kind: str, what: str = "") -> None:
        if kind == WAIT:
            for target, values in self._late:
                target.copy_(values)
            self._late.clear()
        self.seen.events.append(Event(kind, what, "" if kind == FORWARD else _place()))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation of torch, of the CPU or of the device."""
        kwargs = kwargs or {}
        packet, given = func.overloadpacket, [*_tensors(*args, *kwargs.values())]
        ours = [each for each in given if isinstance(each, GpuTensor)]
        wanted = kwargs.get("device")
        if not ours and not _is_gpu(wanted):
            return func(*args, **kwargs)
        if func._can_decompose():  # in inference mode composite operations arrive whole
            with self:
                return func.decompose(*args, **kwargs)
        if packet is aten._to_copy:
            return self._moved(func, args[0], **kwargs)
        if packet is aten.copy_ and len(ours) < 2:
            return self._copied(*args, **kwargs)
        if packet is aten._local_scalar_dense:
            self.note(WAIT, "item")
        self._check(func, args, given, ours)
        for _ in range(READS.get(packet, 0) if ours else 0):
            self.note(WAIT, str(packet))
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            self.note(WAIT, "repeat_interleave")
        if packet is aten.embedding and id(_bare(args[0])) in self.embeddings:
            self.note(FORWARD)
        bare, kwargs = _bare(args), _bare(kwargs)
        if wanted is not None:
            kwargs |= {"device": torch.device("cpu"), "pin_memory": None}
        if any(each.name == "generator" for each in func._schema.arguments):
            kwargs["generator"] = kwargs.get("generator") or self.generator
        elif torch.Tag.nondeterministic_seeded in func.tags:
            raise NotImplementedError(f"{func} draws from the CPU's generator")
        if packet is aten.histc and not bare[0].is_floating_point():  # only CUDA's takes integers
            return GpuTensor(func(bare[0].float(), *bare[1:], **kwargs).to(bare[0].dtype))
        out = func(*bare, **kwargs)
        return out if wanted is not None and not _is_gpu(wanted) else _wrapped(out, ours)

    def _check(self, func: Any, args: Any, given: Any, ours: Any) -> None:
        """Refuse what CUDA refuses, and note the waits of indices."""
        if func.overloadpacket in INDEXED:
            self._check_indices(func, *args[:3])
            return
        numbers = torch.Tag.pointwise in func.tags or func.overloadpacket in NUMBERS
        for each in given if ours else ():
            if not isinstance(each, GpuTensor) and not (numbers and each.dim() == 0):
                _refuse(func, f"a tensor of shape {tuple(each.shape)}")

    def _check_indices(self, func: Any, target: Any, indices: Any, value: Any = None) -> None:
        if not isinstance(target, GpuTensor):
            _refuse(func, "the indexed tensor")
        if value is not None and not isinstance(value, GpuTensor) and value.dim():
            _refuse(func, "the value")
        given = [each for each in indices if each is not None]
        masks = sum(each.dtype in (torch.bool, torch.uint8) for each in given)
        for each in given:
            if not isinstance(each, GpuTensor):
                self.note(WAIT, "an index on the CPU")
        if value is not None and masks == len(given) == 1 and value.numel() == 1:
            masks = isinstance(value, GpuTensor)  # filled by the value, which is read
        for _ in range(masks):
            self.note(WAIT, "a mask as an index")

    def _moved(
        self, func: Any, source: Any, device: Any = None, non_blocking: bool = False, **kwargs: Any
    ) -> Any:
        values = func(_bare(source), **{k: v for k, v in kwargs.items() if k != "pin_memory"})
        if not isinstance(source, GpuTensor):
            self.note(COPY if non_blocking else WAIT, "copy to the device")
        elif device is not None and not _is_gpu(device):
            self.note(FETCH if non_blocking else WAIT, "copy to the host")
            if not non_blocking:
                return values
            garbage = torch.full_like(values, float("nan") if values.is_floating_point() else 77)
            self._late.append((garbage, values))
            return garbage
        return GpuTensor(values)

    def _copied(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        there = isinstance(target, GpuTensor)  # else into memory that is not pinned
        self.note(COPY if there and non_blocking else WAIT, "copy")
        _bare(target).copy_(_bare(source))
        return target


def _named(value: Any) -> Any:
    """A device argument as torch shall see it."""
    return META if isinstance(value, str | torch.device) and _is_gpu(value) else value


def _index(index: Any) -> Any:
    """An index whose lists are tensors of the CPU."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    lists = type(index).__name__ in ("list", "range", "ndarray")
    return torch.as_tensor(index, device="cpu") if lists else index


class Functions(TorchFunctionMode):
    """Reads the devices, lists, numbers and generators among the arguments of torch's functions."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = bool(args) and isinstance(args[0], GpuTensor)
        if func is torch.nn.functional.scaled_dot_product_attention and ours:
            given = [*_tensors(*args, *kwargs.values())]
            self.gpu._check(aten.mm.default, args, given, given)
            return GpuTensor(func(*_bare(args), **_bare(kwargs)).detach())
        if ours and func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            args = (args[0], _index(args[1]), *args[2:])
            if len(args) > 2 and isinstance(args[2], int | float):
                args = (*args[:2], torch.tensor(args[2], dtype=args[0].dtype, device="cpu"))
        if func is torch.Tensor.new_tensor and ours:
            func, args, kwargs = torch.tensor, args[1:], {"device": GpuTensor.device} | kwargs
        made = func in (torch.tensor, torch.as_tensor, torch.asarray)
        if made and _is_gpu(kwargs.get("device")):
            on = kwargs.pop("device")
            return func(*args, **kwargs, **({} if ours else {"device": "cpu"})).to(_named(on))
        if func in (torch.Tensor.to, torch.Tensor.cuda):
            func, args = (
                torch.Tensor.to,
                (*map(_named, args), *[META] * (func is not torch.Tensor.to)),
            )
        if "device" in kwargs:
            kwargs = kwargs | {"device": _named(kwargs["device"])}
        generator, on_device = kwargs.get("generator"), ours or _is_gpu(kwargs.get("device"))
        if generator is not None and on_device != isinstance(generator, GpuGenerator):
            raise RuntimeError(f"Expected another device type for generator: {generator.device}")
        return func(*args, **kwargs)


def _as_called(real: Any, answer: Any) -> Any:
    """An answer that takes only the arguments of torch's own function."""
    signature = inspect.signature(real)

    def called(*args: Any, **kwargs: Any) -> Any:
        signature.bind(*args, **kwargs)
        return answer(*args, **kwargs)

    return called


@contextmanager
def pretended(kind: str = "cuda") -> Iterator[Gpu]:
    """Pretend inside the block that there is an accelerator, of a kind such as "cuda" or "mps"."""
    gpu, module = Gpu(), torch.get_device_module(kind)
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "pretended",
        "get_device_capability": lambda device=None: (9, 0),
        "get_device_properties": lambda device=None: SimpleNamespace(total_memory=BYTES),
        "is_current_stream_capturing": lambda: False,
        "manual_seed_all": lambda seed: gpu.generator.manual_seed(seed),
        "manual_seed": lambda seed: gpu.generator.manual_seed(seed),
        "get_rng_state": lambda device=None: gpu.generator.get_state(),
        "set_rng_state": lambda state, device=None: gpu.generator.set_state(state),
        "synchronize": lambda device=None: gpu.note(WAIT, "synchronize"),
        "max_memory_allocated": lambda device=None: BYTES,
        "reset_peak_memory_stats": lambda device=None: None,
        "default_generators": (gpu.generator,),
    }
    accelerator = {
        "is_available": answers["is_available"],
        "current_accelerator": lambda check_available=False: torch.device(kind),
        "synchronize": answers["synchronize"],
    }
    with ExitStack() as stack:
        for owner, given in ((module, answers), (torch.accelerator, accelerator)):
            for name, answer in given.items():
                if hasattr(owner, name):  # else torch has no such function for this kind
                    real = getattr(owner, name)
                    answer = _as_called(real, answer) if callable(real) else answer
                    stack.enter_context(patch.object(owner, name, answer))
        stack.enter_context(patch.object(GpuTensor, "device", torch.device(kind, 0)))
        stack.enter_context(patch.object(GpuTensor, "is_cuda", kind == "cuda"))
        stack.enter_context(gpu)
        stack.enter_context(Functions(gpu))
        yield gpu
