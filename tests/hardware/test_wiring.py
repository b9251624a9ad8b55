"""Which path lies between two GPUs as CUDA counts them, whatever order nvidia-smi has them in."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyperf_suite.hardware.devices import Gpu, Unavailable
from pyperf_suite.hardware.nvml import Nvml
from pyperf_suite.hardware.topology import LinkGraph, parse, wiring


class Manager:
    """NVML that knows GPUs by the last digit of their UUID."""

    def index(self, uuid: str) -> int | None:
        return int(uuid[-1]) if uuid.startswith("GPU-") else None


def gpus(*uuids: str) -> list[Gpu]:
    return [Gpu(index, "RTX A6000", uuid, (8, 6), 84, 48 << 30) for index, uuid in enumerate(uuids)]


@pytest.fixture
def bridged() -> LinkGraph:
    """GPU0 and GPU1 are bridged by four NVLinks, GPU2 stands alone."""
    return parse((Path(__file__).parent / "topologies" / "3xa6000_bridged.txt").read_text())


def test_paths_follow_the_gpus_and_not_their_numbers(bridged: LinkGraph) -> None:
    told = wiring(gpus("GPU-2", "GPU-1", "GPU-0"), Manager(), bridged)
    assert {pair: link["path"] for pair, link in told.items()} == {"0-1": "NODE", "0-2": "NODE", "1-2": "NV4"}
    assert told["1-2"]["gb_per_s"] > told["0-1"]["gb_per_s"] > 0


def test_a_process_that_sees_fewer_is_told_of_those(bridged: LinkGraph) -> None:
    assert set(wiring(gpus("GPU-0", "GPU-2"), Manager(), bridged)) == {"0-1"}
    assert wiring(gpus("GPU-0"), Manager(), bridged) == {}


def test_what_nobody_tells_is_left_out(bridged: LinkGraph) -> None:
    assert wiring(gpus("GPU-0", "MIG-1"), Manager(), bridged) == {}
    assert wiring(gpus("GPU-0", "GPU-1"), Manager(), Unavailable("there is no nvidia-smi")) == {}


def test_nvml_tells_the_number_of_a_gpu(fake_nvml: type) -> None:
    assert Nvml(fake_nvml()).index("GPU-1") == 3
    assert Nvml(fake_nvml()).index("unknown") is None
