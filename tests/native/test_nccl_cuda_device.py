"""A GPU under collectives: memory, events and graphs through the driver; both libraries are doubles.

A bisection of one rank queues nothing, so the loops around it are all there is to see.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

EVENT_S = 0.5e-6  # what an event costs on the double


@pytest.fixture
def communicator(nccl, context) -> Any:
    """A communicator of one rank on the double's device."""
    library = nccl.Library()
    return nccl.Communicator(library, nccl.CudaDevice(context), library.unique_id(), 0, 1, 20)


def test_a_gpu_is_told_by_its_name(nccl, context):
    assert nccl.CudaDevice(context).name == "Fake H200"
    assert nccl.HostDevice().name == "host"


def test_what_is_written_to_a_buffer_is_read_back(nccl, communicator):
    buffer = nccl.Buffer(communicator, 16)
    buffer.fill(0xFF)
    buffer.write(np.arange(2, dtype=np.float32), 4)
    assert buffer.read(4) == b"\xff" * 4
    assert np.frombuffer(buffer.read(8, 4), np.float32).tolist() == [0, 1]
    assert len(buffer.read(offset=12)) == 4


def test_more_memory_than_there_is_says_how_much_is_free(cuda, nccl, communicator):
    with pytest.raises(cuda.OutOfMemory, match=r"2 GB of device memory were asked for and 1 of 150\.11 GB are free"):
        nccl.Buffer(communicator, 2_000_000_000)
    assert communicator.alive


def test_each_iteration_stands_between_two_events(nccl, communicator, fake):
    rests = nccl.Collective(communicator, "bisection", 1, "float32")
    fake.log()
    seconds, _, _ = rests.time(3, 20)
    assert fake.log() == ["event", "event"] * 3
    assert seconds.tolist() == pytest.approx([EVENT_S] * 3, rel=1e-3)


def test_a_graph_is_captured_once_and_launched_between_the_events(nccl, communicator, fake):
    rests = nccl.Collective(communicator, "bisection", 1, "float32")
    fake.log()
    rests.time(2, 20, graph=True)
    assert fake.log() == ["capture", *["event", "graph", "event"] * 2]
    rests.time(1, 20, graph=True)
    assert fake.log() == ["event", "graph", "event"]


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
    one = nccl.Communicator(library, nccl.CudaDevice(context), library.unique_id(), 0, 1, 20)
    buffer = nccl.Buffer(one, 16)
    rests = nccl.Collective(one, "bisection", 1, "float32", buffer, buffer)
    rests.time(2, 20, graph=True)
    assert fake.get("live") > 3
    one.finalize(20)
    del one, buffer, rests, context
    gc.collect()
    assert (fake.get("live"), fake.get("context_depth")) == (0, 0)
