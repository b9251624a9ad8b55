"""What is said of machines, from the matrices of real ones: what is not as it should be, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.topology import parse
from pyperf_suite.probes.training.topology import Topology
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings

MATRICES = Path(__file__).parents[2] / "hardware" / "topologies"
TWO_NODES = [
    {"number": 0, "cpus": "0-63,128-191", "memory_bytes": 1 << 40, "distances": [10, 21]},
    {"number": 1, "cpus": "64-127,192-255", "memory_bytes": 1 << 40, "distances": [21, 10]},
]
HOST: dict[str, Any] = {
    "model": "a CPU",
    "sockets": 2,
    "cores": 128,
    "online": "0-255",
    "caches_assumed": False,
    "l2_bytes": 2 << 20,
    "l2_total_bytes": 256 << 20,
    "l3_bytes": 105 << 20,
    "l3_total_bytes": 210 << 20,
    "quota_cores": None,
    "memory_left_bytes": None,
    "hypervisor": None,
    "container": None,
    "pcie": [],
    "nodes": TWO_NODES,
    "allowed_cpus": "0-63,128-191",
    "allowed_nodes": "0-1",
}
SOUND: dict[str, Any] = dict.fromkeys(("now", "slot", "card"), "gen 5 x16") | {"awake": True}


def gpus_of(matrix: str, name: str, capability: tuple[int, int], links: int, **changed: dict[int, Any]) -> Any:
    """The details of a machine with that matrix; `changed` has a field's other values by GPU."""
    graph = parse((MATRICES / f"{matrix}.txt").read_text())
    found = []
    for index, smi in enumerate(graph.gpus):
        gpu = {"index": index, "name": name, "compute_capability": list(capability), "smi": smi, **SOUND}
        gpu |= {"cpus": graph.cpus[smi], "numa_node": int(graph.numa.get(smi, 0)), "nvlinks": [True] * links}
        found.append(gpu | {field: values[index] for field, values in changed.items() if index in values})
    placed = {name: HOST[name] for name in ("nodes", "allowed_cpus", "allowed_nodes")}
    return {"gpus": found, "matrix": graph.to_json(), "unavailable": [], "nccl": {}, **placed}


def h200(**changed: dict[int, Any]) -> Any:
    return gpus_of("8xh200_sxm", "NVIDIA H200", (9, 0), 18, **changed)


def found_in(**parts: Any) -> Findings:
    records = [
        Record("run", "static", {}, part, 0, 0, "", "ok", kernel={"name": "topology", "path": part, "details": details})
        for part, details in parts.items()
    ]
    return Topology().findings(records)


def said(**parts: Any) -> str:
    return "\n".join(found_in(**parts).sentences)


def verdicts(found: Findings) -> dict[tuple[str, str], str]:
    return {(row[0], row[1]): row[4] for row in found.tables[0].rows}


def test_a_sound_machine_is_described_and_nothing_is_found_below_expectation():
    found = found_in(host=HOST, gpus=h200(cpus=dict.fromkeys(range(8), HOST["allowed_cpus"])))
    text = "\n".join(found.sentences)
    assert "2 sockets, 128 cores, 2 threads each, 2 NUMA nodes" in text
    assert "L2 128 x 2 MiB, L3 2 x 105 MiB" in text
    assert "28 pairs by NV18, at most 450 GB/s one way. NVLink joins all pairs, as is best" in text
    assert "28 checks: 27 as expected, 1 could be more." in found.sentences
    assert "GPU 0 mlx5_4 by PIX" in text
    assert set(verdicts(found).values()) == {"as expected", "could be more"}
    # What could be more is that half of the CPUs are closed to this process.
    assert [what for what, verdict in verdicts(found).items() if verdict != "as expected"] == [("this process", "CPUs")]
    assert [table.title for table in found.tables[1:]] == [
        "Memory nodes, distances as the firmware has them",
        "Paths as nvidia-smi topo -m has them",
    ]
    assert found.tables[1].rows[0] == ("0", "0-63,128-191", "1099.5", "1.0 x", "2.1 x")
    assert found.tables[2].rows[1][:4] == ("GPU1", "NV18", "X", "NV18")


def test_a_gpu_on_fewer_lanes_of_an_older_generation_is_named_with_what_it_loses():
    text = said(gpus=h200(now={3: "gen 3 x8"}))
    assert "GPU 3 runs at PCIe gen 3 x8 of gen 5 x16: 7.9 of 63.0 GB/s (below expectation)." in text
    assert "GPU 2 runs" not in text


def test_gpus_that_share_a_fault_share_a_sentence():
    text = said(gpus=h200(now={1: "gen 4 x16", 6: "gen 4 x16"}))
    assert "GPU 1 and GPU 6 run at PCIe gen 4 x16 of gen 5 x16: 31.5 of 63.0 GB/s (below expectation)." in text


def test_an_older_slot_is_told_from_a_link_that_came_up_slow():
    machine = h200(now={0: "gen 4 x16"}, slot={0: "gen 4 x16"})
    assert "GPU 0 runs at PCIe gen 4 x16, as the slot has it, of gen 5 x16 that the card has" in said(gpus=machine)
    assert verdicts(found_in(gpus=machine))["GPU 0", "PCIe link"] == "could be more"


def test_an_idle_gpus_generation_is_no_verdict_but_its_lanes_are():
    idle = h200(now={0: "gen 1 x16", 1: "gen 1 x8"}, awake={0: False, 1: False})
    found = verdicts(found_in(gpus=idle))
    assert (found["GPU 0", "PCIe link"], found["GPU 1", "PCIe link"]) == ("not told", "below expectation")
    assert "GPU 0 runs at PCIe gen 1 x16 of gen 5 x16: 4.0 of 63.0 GB/s, seen idle" in said(gpus=idle)


def test_gpus_on_the_other_node_than_this_process_are_named():
    text = said(gpus=h200())
    assert "GPU 4, GPU 5, GPU 6 and GPU 7 hang on node 1, and this process may only run on CPUs 0-63,128-191" in text
    anywhere = h200() | {"allowed_cpus": "0-255"}
    assert "GPU 4, GPU 5, GPU 6 and GPU 7 hang on node 1, this process may run there and elsewhere" in said(
        gpus=anywhere
    )


def test_nvlinks_that_are_down_stand_out_on_a_board_and_a_missing_bridge_is_only_told():
    down = said(gpus=h200(nvlinks={2: [True] * 17 + [False]}))
    assert "GPU 2 shows 17 active NVLinks where H200 SXM has 18 (below expectation)." in down
    bridged = gpus_of("3xa6000_bridged", "NVIDIA RTX A6000", (8, 6), 4, nvlinks={2: []})
    text = said(gpus=bridged)
    assert "1 pair by NV4, at most 56.25 GB/s one way; 2 pairs by NODE" in text
    assert "NVLink joins not all pairs" in text
    assert "Other GPUs have NVLink to each other, GPU 2 to none" in text
    assert "GPU 2 shows no active NVLink where RTX A6000 takes a bridge of 4 (could be more)." in text


def test_gpus_without_nvlink_are_not_blamed_for_it():
    found = found_in(gpus=gpus_of("4xl40s", "NVIDIA L40S", (8, 9), 0))
    text = "\n".join(found.sentences)
    assert "No pair is joined by NVLink" in text
    assert "2 pairs by NODE (several host bridges of one NUMA node), at most 31.5 GB/s one way; 4 pairs by SYS" in text
    assert "No network card is on the side of GPU 0, GPU 1" in text
    assert not [what for _, what in verdicts(found) if what == "NVLink"]


@pytest.mark.parametrize(
    ("matrix", "name", "capability", "nvlinks", "words"),
    [
        ("8xv100_sxm2", "Tesla V100-SXM2-32GB", (7, 0), 6, "8 pairs by NV2, at most 50 GB/s one way; 8 pairs by NV1"),
        ("8xa100_sxm4", "NVIDIA A100-SXM4-80GB", (8, 0), 12, "28 pairs by NV12, at most 300 GB/s one way"),
        ("8xhopper_coloured", "NVIDIA H100 80GB HBM3", (9, 0), 18, "28 pairs by NV18, at most 450 GB/s one way"),
        ("4xgb200", "NVIDIA GB200", (10, 0), 18, "6 pairs by NV18, at most 900 GB/s one way"),
    ],
)
def test_every_machine_with_nvlink_is_as_its_data_sheet_has_it(matrix, name, capability, nvlinks, words):
    found = found_in(gpus=gpus_of(matrix, name, capability, nvlinks))
    assert words in "\n".join(found.sentences)
    told = {verdict for (_, what), verdict in verdicts(found).items() if what == "NVLink"}
    assert told == {"as expected"}


def test_memory_on_the_wrong_node_and_a_process_bound_to_none_are_told():
    text = said(host=HOST | {"allowed_nodes": "1"})
    assert "This process runs on NUMA node 0 and takes memory of node 1 alone (below expectation)." in text
    text = said(host=HOST | {"allowed_cpus": "0-255"})
    assert "This process may run on CPUs of NUMA nodes 0-1 and is bound to none" in text
    assert "numactl --cpunodebind=N" in text


def test_the_walls_of_a_control_group_are_told():
    text = said(host=HOST | {"quota_cores": 2.5, "memory_left_bytes": 8_000_000_000, "container": "docker"})
    assert "The control group grants 2.5 cores' time on 128 CPUs" in text
    assert "The control group leaves this process 8.0 GB of memory, of 2199.0 GB" in text
    assert "inside a container (docker), so all of this is what it was told" in text
    endless = found_in(host=HOST | {"memory_left_bytes": 2**63 - 4096})
    assert ("control group", "memory limit", "none", "none", "as expected") in endless.tables[0].rows


def test_network_cards_and_disks_have_their_links_checked_too():
    card = {"name": "mlx5_0", "kind": "network", "card": "gen 5 x16", "slot": "gen 5 x16", "numa_node": 0}
    disk = {"name": "nvme0", "kind": "NVMe", "now": "gen 3 x4", "card": "gen 4 x4", "slot": None, "numa_node": 0}
    gpu = {"name": "0000:17:00.0", "kind": "GPU", "now": "gen 1 x16", "card": "gen 5 x16", "slot": None}
    found = found_in(host=HOST | {"pcie": [card | {"now": "gen 5 x8"}, disk, gpu | {"numa_node": 0}]})
    assert "Mlx5_0" not in "\n".join(found.sentences)
    assert "mlx5_0 runs at PCIe gen 5 x8 of gen 5 x16: 31.5 of 63.0 GB/s (below expectation)." in found.sentences
    checked = verdicts(found)
    assert checked["nvme0", "PCIe link"] == "could be more"
    assert ("0000:17:00.0", "PCIe link") not in checked


def copies(said: str, count: int = 8) -> dict[str, str]:
    return {f"{one}-{other}": said for one in range(count) for other in range(one + 1, count)}


def test_copies_that_are_allowed_between_all_gpus_are_one_check():
    found = found_in(gpus=h200() | {"direct_copies": copies("allowed")})
    assert verdicts(found)["28 pairs of GPUs", "direct copies"] == "as expected"
    assert "direct copies" not in "\n".join(found.sentences)


def test_gpus_that_nvlink_joins_and_that_may_not_copy_directly_are_below_expectation():
    said_of = copies("allowed") | {"0-3": "not supported", "2-5": "not supported"}
    found = found_in(gpus=h200() | {"direct_copies": said_of})
    sentence = "GPU 0-3 and GPU 2-5: no direct copies (not supported), though NVLink joins them (below expectation)."
    assert sentence in found.sentences
    assert verdicts(found)["26 pairs of GPUs", "direct copies"] == "as expected"


def test_gpus_without_nvlink_whose_copies_go_through_the_host_are_told():
    machine = gpus_of("4xl40s", "NVIDIA L40S", (8, 9), 0) | {"direct_copies": {"0-1": "switched off in the driver"}}
    text = said(gpus=machine)
    assert "GPU 0-1: no direct copies (switched off in the driver), so that what they send each other goes" in text
    assert "through the host's memory (could be more)." in text


def test_packets_that_were_sent_again_are_told_and_are_no_fault_by_themselves():
    found = found_in(gpus=h200(pcie_replays={0: 0, 4: 1, 6: 250}))
    text = "\n".join(found.sentences)
    assert "GPU 4 sent 1 PCIe packet again since the driver was loaded" in text
    assert "GPU 6 sent 250 PCIe packets again" in text
    told = {who: verdict for (who, what), verdict in verdicts(found).items() if what == "PCIe packets sent again"}
    assert told == {"GPU 0": "as expected", "GPU 4": "not told", "GPU 6": "not told"}


def test_what_is_denied_to_nccl_and_what_was_not_told_is_said():
    silent = {"index": 0, "name": "a new GPU", "compute_capability": [9, 0]}
    found = {"gpus": [silent], "matrix": None, "unavailable": ["libnvidia-ml cannot be opened"], "nodes": TWO_NODES}
    found |= {"nccl": {"NCCL_P2P_DISABLE": "1"}, "allowed_cpus": "0-3", "allowed_nodes": "0"}
    text = said(gpus=found)
    assert "NCCL_P2P_DISABLE=1 is set" in text
    assert "Not all can be told: libnvidia-ml cannot be opened." in text
    assert verdicts(found_in(gpus=found))["GPU 0", "PCIe link"] == "not told"


def test_gpus_are_asked_about_where_there_are_some_and_other_parts_refused():
    probe = Topology()
    assert [case.parameters.part for case in probe.cases("quick", Device("cpu"))] == ["host"]
    assert [case.parameters.part for case in probe.cases("full", Device("cuda"))] == ["host", "gpus"]
    with pytest.raises(UserError, match="choose from host, gpus"):
        probe.cases("quick", Device("cpu"), {"part": "disks"})
    assert probe.findings([]) == Findings()
