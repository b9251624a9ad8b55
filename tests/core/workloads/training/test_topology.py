"""Records of a machine's parts, with a GPU or without."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pyperf_suite.hardware import topology as wires
from pyperf_suite.hardware.devices import Device, Gpu
from pyperf_suite.hardware.kernel_files import KernelFiles, parse_cpu_list
from pyperf_suite.hardware.links import PcieLink
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.workloads import exact
from pyperf_suite.workloads.exact import NCCL_SWITCHES, TopologyParameters, gpu_details

MATRICES = Path(__file__).parents[2] / "hardware" / "topologies"


def manager() -> SimpleNamespace:
    """An NVML whose GPUs all tell the same link, and count from the last."""
    figures = {"slot_generation": 5, "card_generation": 5, "width": 16, "slot_width": 16, "generation": 5}
    return SimpleNamespace(
        pci_address=lambda uuid: f"0000:{uuid[-1]}7:00.0",
        pcie=lambda uuid: figures,
        index=lambda uuid: 7 - int(uuid[-1]),
        nvlink_states=lambda uuid: (True,) * 18,
        pcie_replays=lambda uuid: int(uuid[-1]),
        settings=lambda uuid: {"persistence": True},
        health=lambda uuid: {"temperature_celsius": 40},
        memory_errors=lambda uuid: {"uncorrected": 0},
        direct_copies=lambda uuid, other: {"GPU-0": "allowed", "GPU-1": "not supported"}.get(uuid),
    )


@pytest.fixture
def eight_gpus(monkeypatch: pytest.MonkeyPatch):
    """Make this process see eight H200 under a manager of those figures."""
    for name in NCCL_SWITCHES:
        monkeypatch.delenv(name, raising=False)

    def see(manager: Any) -> None:
        found = [Gpu(index, "NVIDIA H200", f"GPU-{index}", (9, 0), 132, 141 << 30) for index in range(8)]
        matrix = wires.parse((MATRICES / "8xh200_sxm.txt").read_text())
        monkeypatch.setattr(exact, "gpus", lambda: found)
        monkeypatch.setattr(exact, "nvml", lambda: manager)
        monkeypatch.setattr(exact.topology, "read", lambda: matrix)

    return see


def test_this_host_is_read_into_a_record_of_plain_json():
    answer = measure_case(Case("topology", TopologyParameters(), "system"), None, Device("cpu"))
    assert (answer["kind"], answer["outcome"]) == ("static", "ok")
    details = json.loads(json.dumps(answer["kernel"]))["details"]
    assert details["model"]
    assert parse_cpu_list(details["allowed_cpus"]) <= parse_cpu_list(details["online"])
    assert answer["metrics"]["cores"]["value"] == details["cores"]


def test_every_gpu_is_told_by_cudas_number_with_the_name_that_nvidia_smi_has_for_it(eight_gpus, tmp_path, monkeypatch):
    eight_gpus(manager())
    monkeypatch.setenv("NCCL_P2P_DISABLE", "1")
    details = gpu_details(KernelFiles(tmp_path))
    assert [(gpu["index"], gpu["smi"]) for gpu in details["gpus"]] == [(n, f"GPU{7 - n}") for n in range(8)]
    first = details["gpus"][0]
    assert (first["now"], first["slot"], first["card"], first["awake"]) == (*("gen 5 x16",) * 3, True)
    assert sum(first["nvlinks"]) == 18
    assert [gpu["pcie_replays"] for gpu in details["gpus"]] == list(range(8))
    message = {f"0-{other}": "allowed" for other in range(1, 8)} | {
        f"1-{other}": "not supported" for other in range(2, 8)
    }
    assert details["direct_copies"] == message, "pairs of which nothing is told are left out"
    assert details["matrix"]["paths"]["GPU0 GPU7"] == "NV18"
    assert details["nccl"] == {"NCCL_P2P_DISABLE": "1"}, "what takes paths away from NCCL is kept"
    assert json.loads(json.dumps(details)) == details


@pytest.mark.gpu
def test_the_gpus_of_this_machine_tell_their_links():
    for gpu in gpu_details(KernelFiles())["gpus"]:
        assert gpu["now"] is None or PcieLink.parse(gpu["now"]).width >= 1
