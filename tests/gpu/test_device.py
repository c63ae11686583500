"""The pretended GPU refuses, waits and forgets as a real one does."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gpu.device import BYTES, COPY, FETCH, GPU, GpuGenerator, GpuTensor, on_gpu, pretended

from ngramspec.costs.processors import processor
from ngramspec.costs.saved import described
from ngramspec.measure.machine import PeakMemory, accelerator, machine, synchronize


@pytest.fixture
def gpu():
    with pretended() as gpu:
        yield gpu


VECTOR, MATRIX = torch.arange(6.0), torch.zeros(3, 4)
REFUSED = {
    "two operands": lambda a, c: a + torch.ones(6),
    "a list of operands": lambda a, c: torch.cat((a, torch.ones(2))),
    "an index": lambda a, c: c.gather(1, torch.zeros(3, 1, dtype=torch.long)),
    "an index on the device": lambda a, c: torch.zeros(3)[a.long()],
    "ids": lambda a, c: torch.nn.functional.embedding(torch.tensor([1]), c),
    "attention": lambda a, c: torch.nn.functional.scaled_dot_product_attention(
        c, c, torch.ones(3, 4)
    ),
    "a generator": lambda a, c: torch.rand(3, device="cuda", generator=torch.Generator()),
    "NumPy": lambda a, c: np.asarray(a),
}


@pytest.mark.parametrize("what", REFUSED)
def test_operands_of_two_devices_are_refused(gpu, what):
    with pytest.raises((RuntimeError, TypeError), match=r"device type|same device"):
        REFUSED[what](on_gpu(VECTOR), on_gpu(MATRIX))


FREE = {
    "arithmetic with a number": lambda a, c, i: (a + torch.tensor(1.0)) * 2,
    "an index on the device": lambda a, c, i: (a[i], c[i, 0]),
    "a mask that is filled": lambda a, c, i: c.__setitem__(c > 4, 0.0),
    "a column that is filled": lambda a, c, i: c.__setitem__((slice(None), 1), 5),
    "what is made there": lambda a, c, i: torch.full((2,), 3, device="cuda") + c.new_zeros(2),
    "a choice": lambda a, c, i: torch.where(a > 2, a, 0.0),
    "the same device": lambda a, c, i: a.to("cuda").to(GPU).to(a),
}
WAITS = {
    "item": (1, lambda a, c, i: a.sum().item()),
    "bool": (1, lambda a, c, i: bool((a > 1).all())),
    "tolist": (1, lambda a, c, i: a.tolist()),
    "cpu": (1, lambda a, c, i: a.cpu()),
    "in": (1, lambda a, c, i: 3.0 in a),
    "to the device": (1, lambda a, c, i: torch.ones(3).to("cuda")),
    "tensor": (1, lambda a, c, i: torch.tensor([1, 2], device="cuda")),
    "new_tensor": (1, lambda a, c, i: c.new_tensor([3.0])),
    "a list as an index": (1, lambda a, c, i: c[:, [1]]),
    "an index on the CPU": (1, lambda a, c, i: a[torch.tensor([0, 2])]),
    "a mask as an index": (1, lambda a, c, i: a[a > 1]),
    "nonzero": (1, lambda a, c, i: (a > 1).nonzero()),
    "multinomial": (2, lambda a, c, i: torch.multinomial(a, 1)),
}


@pytest.mark.parametrize("what", [*FREE, *WAITS])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_the_host_waits_where_it_needs_values(gpu, what, mode):
    count, call = WAITS.get(what, (0, FREE.get(what)))
    with mode(), gpu.watch() as seen:
        a, c, i = on_gpu(VECTOR), on_gpu(MATRIX), on_gpu(torch.tensor([0, 2]))
        call(a, c, i)
    assert seen.count() == count, seen.events
    assert all("gpu/test_device.py" in each.place for each in seen.events)


def test_a_copy_that_is_not_waited_for_arrives_at_the_next_wait(gpu):
    with gpu.watch() as seen:
        there = VECTOR.to("cuda", non_blocking=True)
        back = there.to("cpu", non_blocking=True)
        assert back.isnan().all()
        assert there.device == GPU
        assert there.sum().item() == 15
        assert torch.equal(back, VECTOR)
    assert [seen.count(each) for each in (COPY, FETCH)] == [1, 1]


def test_views_share_memory_and_random_numbers_are_those_of_the_seed(gpu):
    matrix = on_gpu(MATRIX)
    row = matrix[1]
    row += 3
    assert matrix.tolist()[1] == [3.0] * 4 == row.tolist()
    torch.manual_seed(5)
    own = GpuGenerator().manual_seed(5)
    first = torch.empty(3, device="cuda").uniform_().tolist()
    assert first == torch.empty(3, device=GPU).uniform_(generator=own).tolist()
    assert first == torch.rand(3).tolist()  # of the CPU's own generator
    with pytest.raises(NotImplementedError, match="generator"):
        torch.rand(3, device="cuda")


def test_a_model_there_has_its_own_modules_and_tied_weights(gpu):
    model = torch.nn.ModuleList((torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)))
    model[1].weight = model[0].weight
    twin = on_gpu(model)
    assert isinstance(twin[0].weight, GpuTensor)
    assert twin[1].weight is twin[0].weight
    with torch.no_grad():
        assert torch.equal(twin[0](on_gpu(MATRIX)).cpu(), model[0](MATRIX))
        with pytest.raises(RuntimeError, match="same device"):
            twin[0](MATRIX)
    assert not model[0].weight.is_cuda


@pytest.mark.parametrize("kind", ["cuda", "xpu", "mps"])
def test_figures_of_the_machine_are_those_of_its_gpu(kind):
    with pretended(kind) as gpu, gpu.watch() as seen:
        device, known = torch.device(kind, 0), kind != "mps"
        assert accelerator() == device
        name = "pretended" if known else processor()
        about = machine()["gpu"]
        assert [about[each] for each in ("type", "name")] == [kind, name]
        assert about["bytes"] == (BYTES if known else None)
        model = torch.nn.Linear(2, 2)
        model.dtype = torch.float32
        assert described(model, "sdpa", device)["device"] == name
        synchronize(device)
        assert seen.count() == 1
        memory = PeakMemory(device)
        memory.reset()
        assert memory.read() == (BYTES if known else None)
    assert accelerator() is None
    assert machine()["gpu"] is None


def test_a_device_has_only_the_functions_and_dtypes_of_torch_s():
    with pretended("mps"):
        torch.accelerator.synchronize("mps")
        with pytest.raises(TypeError):
            torch.mps.synchronize("mps")
        assert not hasattr(torch.mps, "get_device_name")
        with pytest.raises(TypeError, match="float64"):
            torch.zeros(2, dtype=torch.float64, device="mps")
