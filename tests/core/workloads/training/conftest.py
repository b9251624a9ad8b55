"""Two gloo ranks of workers for cases of several ranks, and a group of one in this process for looking inside."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.runner.workers import WorkerPool


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    """One pool for all tests of a file, as starting a group takes seconds; other files look for ranks of their own."""
    pytest.importorskip("torch.distributed")
    with WorkerPool(resolve("cpu"), 60.0) as pool:
        yield pool


@pytest.fixture
def group_of_one() -> Iterator[None]:
    """torch's default process group with this process alone: whoever should have been there too is missed."""
    distributed = pytest.importorskip("torch.distributed")
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()
