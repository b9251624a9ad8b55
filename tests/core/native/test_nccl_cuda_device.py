"""A GPU under collectives: memory, events and graphs through the driver; both libraries are doubles.

A bisection of one rank queues nothing, so the loops around it are all there is to see.
"""

import gc
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def communicator(nccl, context) -> Any:
    library = nccl.Library()
    return nccl.Communicator(library, nccl.CudaDevice(context), library.unique_id(), 0, 1, 20)


BITS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


@pytest.fixture(params=["host", "gpu"])
def buffer_of(request, nccl, cuda, fake) -> Any:
    library = nccl.Library()
    gpu = request.param == "gpu"
    device = nccl.CudaDevice(cuda.Context(cuda.Driver()), b"\x7fELF") if gpu else nccl.HostDevice()
    communicator = nccl.Communicator(library, device, library.unique_id(), 0, 1, 20)
    return lambda size: nccl.Buffer(communicator, size)


@pytest.mark.parametrize("size", BITS)
@pytest.mark.parametrize(("period", "count"), [(1, 1), (7, 3), (7, 7), (7, 8), (7, 1000), (65_521, 200_003)])
def test_values_repeat_and_one_wrong_element_anywhere_is_found(buffer_of, size, period, count):
    buffer, before = buffer_of((count + 3) * size), 2 * size
    values = np.random.default_rng(period).integers(1, 127, period).astype(BITS[size])
    buffer.fill(0xFF)
    buffer.repeat(values, count * size, before)
    due = np.resize(values, count)
    assert np.frombuffer(buffer.read(count * size, before), BITS[size]).tolist() == due.tolist()
    assert buffer.read(before) + buffer.read(offset=before + count * size) == b"\xff" * 3 * size
    assert buffer.outside(values, values, count, before) == (0, -1)
    for place in {0, count // 3, count - 1}:
        for wrong in (due[place] - 1, due[place] + 1, 0xFF):
            buffer.write(np.array([wrong], BITS[size]), before + place * size)
            assert buffer.outside(values, values, count, before) == (1, place)
        near = buffer.outside(values - 1, values + 1, count, before)
        buffer.write(due[place : place + 1], before + place * size)
        assert near == (1, place)
    assert buffer.outside(values + 1, values + 1, count, before) == (count, 0)


def test_a_device_that_fails_in_the_middle_ends_the_communicator(cuda, nccl, communicator, fake):
    rests = nccl.Collective(communicator, "bisection", 1, "float32")
    fake.fail("cuEventQuery", 719)
    with pytest.raises(cuda.LaunchFailed, match=r"cuEventQuery failed with CUDA_ERROR_LAUNCH_FAILED"):
        rests.time(1, 20)
    assert not communicator.alive


def test_a_device_that_is_not_done_is_waited_for_until_the_deadline(nccl, communicator, fake):
    rests = nccl.Collective(communicator, "bisection", 1, "float32")
    rests.run(20)
    fake.set(busy=1)
    with pytest.raises(nccl.DeadlineExceeded, match=r"bisection of 1 float32 did not end within 0\.1 s"):
        rests.run(0.1)
    assert communicator.lost  # its stream never came to rest, so nothing of it can be given back
    fake.set(busy=0)


def test_everything_is_given_back_and_the_callers_context_is_left_as_it_was(nccl, cuda, fake):
    library = nccl.Library()
    context = cuda.Context(cuda.Driver())
    communicator = nccl.Communicator(library, nccl.CudaDevice(context), library.unique_id(), 0, 1, 20)
    buffer = nccl.Buffer(communicator, 16)
    rests = nccl.Collective(communicator, "bisection", 1, "float32", buffer, buffer)
    rests.time(2, 20, graph_calls=1)
    assert fake.get("live") > 3
    communicator.finalize(20)
    del communicator, buffer, rests, context
    gc.collect()
    assert (fake.get("live"), fake.get("context_depth")) == (0, 0)
