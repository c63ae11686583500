"""A pretended GPU: tensors that claim to be on ``cuda:0`` and hold their values on the CPU.

For torch such a tensor is on "meta", a device that every build has and no generation uses; Python
code sees ``cuda:0``. Inside ``pretended()`` every operation of torch

* refuses operands on two devices, where CUDA does,
* is noted if the host would wait for the device in it, or copy to it without waiting,
* leaves garbage in what is copied to the host without waiting, until the next wait.

Random numbers of the device are those of a CPU's generator with the same seed.
"""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
META = torch.device("meta")
WAIT, COPY, FETCH, FORWARD = "wait", "copy", "fetch", "forward"  # kinds of events
SKIPPED = (__file__, str(Path(torch.__file__).parent), "<")  # files that are nobody's code
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


# What is seen


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


# Tensors


class GpuTensor(torch.Tensor):
    """A tensor on the pretended device, with its ``values`` on the CPU."""

    values: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, values: torch.Tensor) -> GpuTensor:
        layout = {"strides": values.stride(), "storage_offset": values.storage_offset()}
        own = torch.Tensor._make_wrapper_subclass(
            cls, values.shape, **layout, dtype=values.dtype, device=META
        )
        own.values = values
        return own

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert _gpu is not None, "an operation outside of pretended()"
        return _gpu.run(func, args, kwargs or {})

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def get_device(self) -> int:
        return 0

    def numpy(self, *, force: bool = False) -> Any:
        if not force:
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu()")
        return self.detach().cpu().numpy()

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.numpy()

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def data_ptr(self) -> int:
        return self.values.data_ptr()

    def __deepcopy__(self, memo: dict[int, Any]) -> GpuTensor:
        return memo.setdefault(id(self), GpuTensor(self.values.clone()))

    def __repr__(self, **_: Any) -> str:
        return f"GpuTensor({self.values!r})"


def on_gpu(value: Any) -> Any:
    """A copy on the pretended device of a tensor, or of a model with its tied weights tied."""
    if isinstance(value, torch.Tensor):
        return GpuTensor(value.detach().clone())
    memo: dict[int, Any] = {}
    for each in (*value.parameters(), *value.buffers()):
        twin: Any = GpuTensor(each.detach())
        if isinstance(each, torch.nn.Parameter):
            twin = torch.nn.Parameter(twin, requires_grad=False)
        memo[id(each)] = twin
    return copy.deepcopy(value, memo)


class GpuGenerator(torch.Generator):
    """A generator of the pretended device, with the numbers of a CPU's."""

    device = property(lambda self: GPU)


# Operations


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for each in values:
        if isinstance(each, torch.Tensor):
            yield each
        elif isinstance(each, list | tuple):
            yield from _tensors(each)


def _bare(value: Any) -> Any:
    if isinstance(value, GpuTensor):
        return value.values
    return type(value)(map(_bare, value)) if isinstance(value, list | tuple) else value


def _is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type in ("meta", "cuda")


def _refuse(what: Any, found: str) -> None:
    raise RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and"
        f" cpu! ({what}: {found})"
    )


def _garbage(like: torch.Tensor) -> torch.Tensor:
    """What memory may hold before a copy has arrived."""
    if like.dtype == torch.bool:
        return torch.ones_like(like)
    return torch.full_like(like, float("nan") if like.is_floating_point() else -77)


class Gpu:
    """The pretended device: what its operations do, and what is seen of them."""

    def __init__(self) -> None:
        self.seen = Seen()
        self.generator = GpuGenerator()
        self.embeddings: set[int] = set()  # ids of the tables whose lookup begins a forward
        self._late: list[tuple[torch.Tensor, torch.Tensor]] = []  # copies that are under way

    @contextmanager
    def watch(self, model: Any = None) -> Iterator[Seen]:
        """The events inside the block; the forwards that begin are those of ``model``."""
        before = self.seen, self.embeddings
        self.seen, self.embeddings = Seen(), set()
        if model is not None:
            self.embeddings.add(id(model.get_input_embeddings().weight.values))
        try:
            yield self.seen
        finally:
            self.seen, self.embeddings = before

    def note(self, kind: str, what: str = "") -> None:
        if kind == WAIT:
            for target, values in self._late:
                target.copy_(values)
            self._late.clear()
        self.seen.events.append(Event(kind, what, "" if kind == FORWARD else _place()))

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation of torch, of the CPU or of the device."""
        packet, given = func.overloadpacket, [*_tensors((*args, *kwargs.values()))]
        ours = [each for each in given if isinstance(each, GpuTensor)]
        if not ours and not _is_gpu(kwargs.get("device")):
            return func(*args, **kwargs)
        if func._can_decompose():  # in inference mode composite operations arrive whole
            with _Operations(self):
                return func.decompose(*args, **kwargs)
        if packet is aten._to_copy:
            return self._moved(func, args[0], kwargs)
        if packet is aten.copy_ and len(ours) < 2:
            return self._copied(*args, **kwargs)
        if packet is aten._local_scalar_dense:
            self.note(WAIT, "item")
            return args[0].values.item()
        if (
            packet is aten.histc and ours and not args[0].is_floating_point()
        ):  # CUDA's takes integers
            counts = func(_bare(args[0]).float(), *args[1:], **kwargs)
            return GpuTensor(counts.to(args[0].dtype))
        self._check(func, packet, args, given, ours)
        for _ in range(READS.get(packet, 0) if ours else 0):
            self.note(WAIT, str(packet))
        if func is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None:
            self.note(WAIT, "repeat_interleave")
        if packet is aten.embedding and id(_bare(args[0])) in self.embeddings:
            self.note(FORWARD)
        bare = {name: _bare(each) for name, each in kwargs.items()}
        wanted = kwargs.get("device")
        if wanted is not None:
            bare |= {"device": torch.device("cpu"), "pin_memory": None}
        if any(each.name == "generator" for each in func._schema.arguments):
            bare["generator"] = kwargs.get("generator") or self.generator
        elif torch.Tag.nondeterministic_seeded in func.tags:
            raise NotImplementedError(f"{func} draws from the CPU's generator")
        out = func(*_bare(args), **bare)
        return out if wanted is not None and not _is_gpu(wanted) else _wrapped(out, ours)

    def _check(self, func: Any, packet: Any, args: Any, given: Any, ours: Any) -> None:
        """Refuse what CUDA refuses, and note the waits of indices."""
        if packet in INDEXED:
            self._check_indices(packet, *args)
            return
        numbers = torch.Tag.pointwise in func.tags or packet in NUMBERS
        for each in given:
            if ours and not isinstance(each, GpuTensor) and not (numbers and each.dim() == 0):
                _refuse(packet, f"shape {tuple(each.shape)} on the CPU")

    def _check_indices(
        self, packet: Any, target: Any, indices: Any, value: Any = None, *_: Any
    ) -> None:
        if not isinstance(target, GpuTensor):
            _refuse(packet, "an index on the device")
        if isinstance(value, torch.Tensor) and not isinstance(value, GpuTensor) and value.dim():
            _refuse(packet, "a value on the CPU")
        indices = [each for each in indices if each is not None]
        masks = [each for each in indices if each.dtype in (torch.bool, torch.uint8)]
        for each in indices:
            if not isinstance(each, GpuTensor):
                self.note(WAIT, "an index on the CPU")
        if value is not None and masks and len(indices) == 1 and value.numel() == 1:
            masks = []  # filled where the mask is, by the value as a number
            if isinstance(value, GpuTensor):
                self.note(WAIT, "a value")
        for _ in masks:
            self.note(WAIT, "a mask as an index")

    def _moved(self, func: Any, source: torch.Tensor, kwargs: dict[str, Any]) -> Any:
        blocking, wanted = not kwargs.get("non_blocking"), kwargs.get("device")
        own = {k: v for k, v in kwargs.items() if k in ("dtype", "layout", "memory_format")}
        values = func(_bare(source), **own)
        if isinstance(source, GpuTensor) and wanted is not None and not _is_gpu(wanted):
            return self._fetched(values, blocking)
        if not isinstance(source, GpuTensor):
            self.note(*((WAIT, "copy to the device") if blocking else (COPY, "copy")))
        return GpuTensor(values)

    def _fetched(self, values: torch.Tensor, blocking: bool) -> torch.Tensor:
        if blocking:
            self.note(WAIT, "copy to the host")
            return values
        self.note(FETCH, "copy to the host")
        target = _garbage(values)
        self._late.append((target, values))
        return target

    def _copied(self, target: Any, source: Any, non_blocking: bool = False) -> Any:
        if isinstance(target, GpuTensor):
            self.note(*((COPY, "copy") if non_blocking else (WAIT, "copy to the device")))
        else:  # into memory that is not pinned
            self.note(WAIT, "copy to the host")
        _bare(target).copy_(_bare(source))
        return target


def _wrapped(out: Any, ours: list[Any]) -> Any:
    """An operation's results on the device; what it changed in place is the operand."""
    if isinstance(out, list | tuple):
        return type(out)(_wrapped(each, ours) for each in out)
    if not isinstance(out, torch.Tensor):
        return out
    same = next((each for each in ours if each.values is out), None)
    return GpuTensor(out) if same is None else same


# Modes


class _Operations(TorchDispatchMode):
    """Takes all operations of torch."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.gpu.run(func, args, kwargs or {})


def _named(value: Any) -> Any:
    """A device argument as torch shall see it."""
    if isinstance(value, str) and value.startswith("cuda"):
        return META
    return META if isinstance(value, torch.device) and value.type == "cuda" else value


def _index(index: Any) -> Any:
    """An index whose lists are tensors of the CPU."""
    if isinstance(index, tuple):
        return tuple(map(_index, index))
    if type(index).__name__ in ("list", "range", "ndarray"):
        return torch.as_tensor(index, device="cpu")
    return index


class _Functions(TorchFunctionMode):
    """What torch does before operations: it reads devices, lists and generators."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self.gpu = gpu

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = bool(args) and isinstance(args[0], GpuTensor)
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = [*_tensors((*args, *kwargs.values()))]
            found = [each for each in given if isinstance(each, GpuTensor)]
            if found:
                self.gpu._check(aten.mm.default, func.__name__, args, given, found)
                bare = {name: _bare(each) for name, each in kwargs.items()}
                return GpuTensor(func(*_bare(args), **bare).detach())
        if ours and func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            args = (args[0], _index(args[1]), *args[2:])
            if isinstance(args[-1], int | float) and func is torch.Tensor.__setitem__:
                args = (*args[:2], torch.tensor(args[2], dtype=args[0].dtype, device="cpu"))
        if func is torch.Tensor.new_tensor and ours:
            func, args = torch.tensor, args[1:]
            kwargs = {"device": GPU} | kwargs
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and _is_gpu(kwargs.get("device")):
            host = func(*args, **kwargs | {"device": None if ours else "cpu"})
            return host.to(META)
        if func is torch.Tensor.cuda:
            return args[0].to(META, **kwargs)
        if "device" in kwargs:
            kwargs = kwargs | {"device": _named(kwargs["device"])}
        if func is torch.Tensor.to:
            args = tuple(map(_named, args))
        generator = kwargs.get("generator")
        device = kwargs.get("device")
        if generator is not None and (ours or _is_gpu(device)) != (generator.device == GPU):
            raise RuntimeError(f"Expected another device type for generator: {generator.device}")
        return func(*args, **kwargs)


_gpu: Gpu | None = None


@contextmanager
def pretended() -> Iterator[Gpu]:
    """Pretend that there is a GPU inside the block."""
    global _gpu
    gpu = _gpu = Gpu()
    answers = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_name": lambda device=None: "pretended",
        "get_device_capability": lambda device=None: (9, 0),
        "is_current_stream_capturing": lambda: False,
        "manual_seed_all": lambda seed: gpu.generator.manual_seed(seed),
        "synchronize": lambda device=None: gpu.note(WAIT, "synchronize"),
        "default_generators": (gpu.generator,),
    }
    with ExitStack() as stack:
        for name, answer in answers.items():
            stack.enter_context(patch.object(torch.cuda, name, answer))
        stack.enter_context(_Operations(gpu))
        stack.enter_context(_Functions(gpu))
        try:
            yield gpu
        finally:
            _gpu = None
