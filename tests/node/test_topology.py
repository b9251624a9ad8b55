"""What is said of machines, from the matrices of real ones: what is not as it should be, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Cell, Findings, Remark
from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.topology import parse
from pyperf_suite.node.probes.topology import PROBE
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.workloads.exact import TopologyParameters

MATRICES = Path(__file__).parents[1] / "core" / "hardware" / "topologies"
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
    cases = {part: Case("topology", TopologyParameters(part), "system") for part in parts}
    records = [
        Record(
            "run",
            "static",
            cases[part].to_json(),
            cases[part].case_id,
            0,
            0,
            "",
            "ok",
            kernel={"name": "topology", "path": part, "details": details},
        )
        for part, details in parts.items()
    ]
    return PROBE.findings(records)


def table(found: Findings, title: str) -> list[dict[str, Cell]]:
    """The rows of a table, by column."""
    (requested,) = [each for each in found.tables if each.title == title]
    names = [column.name for column in requested.columns]
    return [dict(zip(names, row, strict=True)) for row in requested.rows]


def checks(found: Findings) -> dict[tuple[Cell, Cell], dict[str, Cell]]:
    return {(row["part"], row["check"]): row for row in table(found, "What was found, against what could be")}


def verdicts(found: Findings) -> dict[tuple[Cell, Cell], Cell]:
    return {which: row["verdict"] for which, row in checks(found).items()}


def troubles(found: Findings) -> dict[tuple[Cell, Cell], Remark]:
    """Remarks on checks, by the parts that share them and what was checked."""
    return {(each.values["who"], each.values["what"]): each for each in found.remarks if "verdict" in each.values}


def paths(found: Findings) -> dict[Cell, tuple[Cell, float | None]]:
    """Pairs and GB/s by path."""
    rows = table(found, "Paths between GPUs")
    return {row["path"]: (row["pairs"], row["at most, one way"].value / 1e9) for row in rows}


def value(found: Findings, name: str) -> Cell:
    """What the only remark with a value of that name has."""
    (cell,) = [each.values[name] for each in found.remarks if name in each.values]
    return cell


def test_a_sound_machine_is_described_and_nothing_is_found_below_expectation():
    found = found_in(host=HOST, gpus=h200(cpus=dict.fromkeys(range(8), HOST["allowed_cpus"])))
    host = {row["what"]: row["found"] for row in table(found, "The host")}
    assert [host[what] for what in ("sockets", "cores", "threads", "NUMA nodes")] == [2, 128, 256, 2]
    assert (host["L2"].value, host["L2, how many"], host["L3, how many"]) == (2 << 20, 128, 2)
    assert paths(found) == {"NV18": (28, 450.0)}
    assert (value(found, "linked"), value(found, "pairs")) == (28, 28)
    assert (value(found, "checks"), [each.values["ok"] for each in found.remarks if "checks" in each.values]) == (
        28,
        [27],
    )
    nearest = table(found, "Network cards nearest to each GPU")[0]
    assert (nearest["GPU"], nearest["cards"], nearest["path"]) == (0, "mlx5_4", "PIX")
    # What could be more is that half of the CPUs are closed to this process.
    assert {what for what, verdict in verdicts(found).items() if verdict != "ok"} == {("this process", "CPUs")}
    assert list(troubles(found)) == [("this process", "CPUs")]
    node = table(found, "Memory nodes, distances as the firmware has them")[0]
    assert (node["node"], node["CPUs"], node["memory"].value) == (0, "0-63,128-191", 1 << 40)
    assert (node["to 0"].value, node["to 1"].value) == (1.0, 2.1)
    assert list(table(found, "Paths as nvidia-smi topo -m has them")[1].values())[:4] == ["GPU1", "NV18", "X", "NV18"]


def test_a_gpu_on_fewer_lanes_of_an_older_generation_is_named_with_what_it_loses():
    found = found_in(gpus=h200(now={3: "gen 3 x8"}))
    row = checks(found)["GPU 3", "PCIe link"]
    assert (row["found"], row["expected"], row["verdict"]) == ("gen 3 x8", "gen 5 x16", "failed")
    assert (row["rate"].value, row["of"].value) == (pytest.approx(7.88e9, rel=0.01), pytest.approx(63e9, rel=0.01))
    assert troubles(found)["GPU 3", "PCIe link"].kind == "caution"
    assert verdicts(found)["GPU 2", "PCIe link"] == "ok"


def test_an_older_slot_is_told_from_a_link_that_came_up_slow():
    row = checks(found_in(gpus=h200(now={0: "gen 4 x16"}, slot={0: "gen 4 x16"})))["GPU 0", "PCIe link"]
    assert (row["found"], row["expected"], row["verdict"]) == ("gen 4 x16", "gen 5 x16", "caution")


def test_an_idle_gpus_generation_is_no_verdict_but_its_lanes_are():
    found = found_in(gpus=h200(now={0: "gen 1 x16", 1: "gen 1 x8"}, awake={0: False, 1: False}))
    message = verdicts(found)
    assert (message["GPU 0", "PCIe link"], message["GPU 1", "PCIe link"]) == ("unknown", "failed")
    assert "idle" in troubles(found)["GPU 0", "PCIe link"].values["why"]


@pytest.mark.parametrize(("cpus", "verdict"), [("0-63,128-191", "failed"), ("0-255", "caution")])
def test_gpus_on_the_other_node_than_this_process_are_named(cpus, verdict):
    found = found_in(gpus=h200() | {"allowed_cpus": cpus})
    message = troubles(found)["GPU 4, GPU 5, GPU 6, GPU 7", "near CPUs"]
    assert message.values["verdict"] == verdict
    assert (message.values["found"], message.values["expected"]) == (
        f"this process on CPUs {cpus}, the GPU on node 1",
        "64-127,192-255",
    )


def test_nvlinks_that_are_down_stand_out_on_a_board_and_a_missing_bridge_is_only_told():
    row = checks(found_in(gpus=h200(nvlinks={2: [True] * 17 + [False]})))["GPU 2", "NVLinks"]
    assert (row["found"], row["expected"], row["verdict"]) == (17, 18, "failed")
    found = found_in(gpus=gpus_of("3xa6000_bridged", "NVIDIA RTX A6000", (8, 6), 4, nvlinks={2: []}))
    assert paths(found)["NV4"] == (1, 56.25)
    assert paths(found)["NODE"][0] == 2
    assert (value(found, "linked"), value(found, "pairs")) == (1, 3)
    assert "GPU 2" in [each.values.get("who") for each in found.remarks if each.kind == "caution"]
    row = checks(found)["GPU 2", "NVLinks"]
    assert (row["found"], row["expected"], row["verdict"]) == (0, 4, "caution")


def test_gpus_without_nvlink_are_not_blamed_for_it():
    found = found_in(gpus=gpus_of("4xl40s", "NVIDIA L40S", (8, 9), 0))
    assert value(found, "linked") == 0
    assert paths(found) == {"NODE": (2, 31.5), "SYS": (4, 31.5)}
    assert "GPU 0, GPU 1" in [each.values.get("who") for each in found.remarks if each.kind == "caution"]
    assert not [what for _, what in verdicts(found) if what == "NVLinks"]


@pytest.mark.parametrize(
    ("matrix", "name", "capability", "nvlinks", "expected"),
    [
        ("8xv100_sxm2", "Tesla V100-SXM2-32GB", (7, 0), 6, {"NV2": (8, 50.0), "NV1": (8, 25.0)}),
        ("8xa100_sxm4", "NVIDIA A100-SXM4-80GB", (8, 0), 12, {"NV12": (28, 300.0)}),
        ("8xhopper_coloured", "NVIDIA H100 80GB HBM3", (9, 0), 18, {"NV18": (28, 450.0)}),
        ("4xgb200", "NVIDIA GB200", (10, 0), 18, {"NV18": (6, 900.0)}),
    ],
)
def test_every_machine_with_nvlink_is_as_its_data_sheet_has_it(matrix, name, capability, nvlinks, expected):
    found = found_in(gpus=gpus_of(matrix, name, capability, nvlinks))
    assert expected.items() <= paths(found).items()
    assert {verdict for (_, what), verdict in verdicts(found).items() if what == "NVLinks"} == {"ok"}


def test_memory_on_the_wrong_node_and_a_process_bound_to_none_are_told():
    row = checks(found_in(host=HOST | {"allowed_nodes": "1"}))["this process", "memory nodes"]
    assert (row["found"], row["expected"]) == ("CPUs of 0, memory of 1", "0")
    assert row["verdict"] == "failed"
    found = found_in(host=HOST | {"allowed_cpus": "0-255"})
    assert verdicts(found)["this process", "memory nodes"] == "caution"
    assert "numactl --cpunodebind=N" in troubles(found)["this process", "memory nodes"].values["why"]


def test_the_walls_of_a_control_group_are_told():
    found = found_in(host=HOST | {"quota_cores": 2.5, "memory_left_bytes": 8_000_000_000, "container": "docker"})
    quota, limit = (troubles(found)["control group", what].values for what in ("CPU quota", "memory limit"))
    assert (quota["found"].value, quota["expected"]) == (2.5, 128)
    assert (limit["found"].value, limit["expected"].value) == (8e9, 2 << 40)
    assert (value(found, "wall"), value(found, "name")) == ("container", "docker")
    endless = checks(found_in(host=HOST | {"memory_left_bytes": 2**63 - 4096}))["control group", "memory limit"]
    assert [endless[name] for name in ("found", "expected", "verdict")] == ["none", "none", "ok"]


def test_network_cards_and_disks_have_their_links_checked_too():
    card = {"name": "mlx5_0", "kind": "network", "card": "gen 5 x16", "slot": "gen 5 x16", "numa_node": 0}
    disk = {"name": "nvme0", "kind": "NVMe", "now": "gen 3 x4", "card": "gen 4 x4", "slot": None, "numa_node": 0}
    gpu = {"name": "0000:17:00.0", "kind": "GPU", "now": "gen 1 x16", "card": "gen 5 x16", "slot": None}
    found = found_in(host=HOST | {"pcie": [card | {"now": "gen 5 x8"}, disk, gpu | {"numa_node": 0}]})
    checked = verdicts(found)
    assert checked["mlx5_0", "PCIe link"] == "failed"
    assert checked["nvme0", "PCIe link"] == "caution"
    assert ("0000:17:00.0", "PCIe link") not in checked


def copies(said: str, count: int = 8) -> dict[str, str]:
    return {f"{one}-{other}": said for one in range(count) for other in range(one + 1, count)}


def test_gpus_that_nvlink_joins_and_that_may_not_copy_directly_are_below_expectation():
    said_of = copies("allowed") | {"0-3": "not supported", "2-5": "not supported"}
    found = found_in(gpus=h200() | {"direct_copies": said_of})
    row = checks(found)["GPU 0-3, GPU 2-5", "direct copies"]
    assert (row["found"], row["expected"], row["verdict"]) == ("not supported", "allowed", "failed")
    assert verdicts(found)["26 pairs of GPUs", "direct copies"] == "ok"


def test_gpus_without_nvlink_whose_copies_go_through_the_host_are_told():
    machine = gpus_of("4xl40s", "NVIDIA L40S", (8, 9), 0) | {"direct_copies": {"0-1": "switched off in the driver"}}
    message = troubles(found_in(gpus=machine))["GPU 0-1", "direct copies"]
    assert (message.values["found"], message.values["verdict"]) == ("switched off in the driver", "caution")


def test_packets_that_were_sent_again_are_told_and_are_no_fault_by_themselves():
    found = found_in(gpus=h200(pcie_replays={0: 0, 4: 1, 6: 250}))
    sent = {who: row for (who, what), row in checks(found).items() if what == "PCIe packets sent again"}
    assert {who: (row["found"], row["verdict"]) for who, row in sent.items()} == {
        "GPU 0": (0, "ok"),
        "GPU 4": (1, "unknown"),
        "GPU 6": (250, "unknown"),
    }
    assert {who for who, what in troubles(found) if what == "PCIe packets sent again"} == {"GPU 4", "GPU 6"}


def test_what_is_denied_to_nccl_and_what_was_not_told_is_said():
    silent = {"index": 0, "name": "a new GPU", "compute_capability": [9, 0]}
    gpus = {"gpus": [silent], "matrix": None, "unavailable": ["libnvidia-ml cannot be opened"], "nodes": TWO_NODES}
    gpus |= {"nccl": {"NCCL_P2P_DISABLE": "1"}, "allowed_cpus": "0-3", "allowed_nodes": "0"}
    found = found_in(gpus=gpus)
    assert verdicts(found)["NCCL_P2P_DISABLE", "set to"] == "caution"
    assert value(found, "reason") == "libnvidia-ml cannot be opened"
    assert verdicts(found)["GPU 0", "PCIe link"] == "unknown"


def test_gpus_are_asked_about_where_there_are_some_and_other_parts_refused():
    assert [case.parameters.part for case in PROBE.cases("quick", Device("cpu"))] == ["host"]
    assert [case.parameters.part for case in PROBE.cases("full", Device("cuda"))] == ["host", "gpus"]
    with pytest.raises(UserError, match="choose from host, gpus"):
        PROBE.cases("quick", Device("cpu"), {"part": "disks"})
    assert PROBE.findings([]) == Findings()
