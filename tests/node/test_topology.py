"""Findings on machines, from the matrices of real ones: faults, and nothing else."""

import collections
from typing import Any

import pytest

from pyperf_suite.findings.data import Cell, Findings, Remark
from pyperf_suite.node.probes.topology import PROBE, nvlinks_per_gpu
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.workloads.exact import TopologyParameters
from tests.node.made_up import HOST, TWO_NODES, gpus_of, h200
from tests.records import a_record, lines


def found_in(**parts: Any) -> Findings:
    cases = {part: Case("topology", TopologyParameters(part), "system") for part in parts}
    return PROBE.findings(
        [
            a_record(cases[part], None, kind="static", kernel={"name": "topology", "path": part, "details": details})
            for part, details in parts.items()
        ]
    )


def table(findings: Findings, title: str) -> list[dict[str, Cell]]:
    """The rows of a table, by column; what it has no column for is None."""
    return [collections.defaultdict(lambda: None, row) for row in lines(findings, title)]


def checks(findings: Findings) -> dict[tuple[Cell, Cell], dict[str, Cell]]:
    return {(row["part"], row["check"]): row for row in table(findings, "What was found, against what could be")}


def verdicts(findings: Findings) -> dict[tuple[Cell, Cell], Cell]:
    return {which: row["verdict"] for which, row in checks(findings).items()}


def troubles(findings: Findings) -> dict[tuple[Cell, Cell], Remark]:
    """Remarks on checks, by the parts that share them and what was checked."""
    return {(each.values["who"], each.values["what"]): each for each in findings.remarks if "verdict" in each.values}


def paths(findings: Findings) -> dict[Cell, tuple[Cell, float | None]]:
    """Pairs and GB/s by path."""
    rows = table(findings, "Paths between GPUs")
    return {row["path"]: (row["pairs"], row["at most, one way"].value / 1e9) for row in rows}


def value(findings: Findings, name: str) -> Cell:
    """Value of that name in the only remark that has one."""
    (cell,) = [each.values[name] for each in findings.remarks if name in each.values]
    return cell


def test_a_sound_machine_is_described_and_nothing_is_found_below_expectation():
    report = found_in(host=HOST, gpus=h200(cpus=dict.fromkeys(range(8), HOST["allowed_cpus"])))
    host = {row["what"]: row["found"] for row in table(report, "The host")}
    assert [host[what] for what in ("sockets", "cores", "threads", "NUMA nodes")] == [2, 128, 256, 2]
    assert (host["L2"].value, host["L2, how many"], host["L3, how many"]) == (2 << 20, 128, 2)
    assert paths(report) == {"NV18": (28, 450.0)}
    assert (value(report, "linked"), value(report, "pairs")) == (28, 28)
    assert (value(report, "checks"), [each.values["ok"] for each in report.remarks if "checks" in each.values]) == (
        28,
        [27],
    )
    nearest = table(report, "Network cards nearest to each GPU")[0]
    assert (nearest["GPU"], nearest["cards"], nearest["path"]) == (0, "mlx5_4", "PIX")
    # The only thing that could be better: half of the CPUs are closed to this process.
    assert {what for what, verdict in verdicts(report).items() if verdict != "ok"} == {("this process", "CPUs")}
    assert list(troubles(report)) == [("this process", "CPUs")]
    node = table(report, "Memory nodes, distances as the firmware has them")[0]
    assert (node["node"], node["CPUs"], node["memory"].value) == (0, "0-63,128-191", 1 << 40)
    assert (node["to 0"].value, node["to 1"].value) == (1.0, 2.1)
    assert list(table(report, "Paths as nvidia-smi topo -m has them")[1].values())[:4] == ["GPU1", "NV18", "X", "NV18"]


def copies(answer: str, **others: str) -> dict[str, str]:
    pairs = {f"{one}-{other}": answer for one in range(8) for other in range(one + 1, 8)}
    return pairs | {name.replace("_", "-").strip("-"): value for name, value in others.items()}


A6000 = ("3xa6000_bridged", "NVIDIA RTX A6000", (8, 6), 4)
L40S = gpus_of("4xl40s", "NVIDIA L40S", (8, 9), 0)
OLD = h200(now={0: "gen 4 x16"}, slot={0: "gen 4 x16"})
DOWN, UNBRIDGED = h200(nvlinks={2: [True] * 17 + [False]}), gpus_of(*A6000, nvlinks={2: []})
NEAR, REMOTE, SPREAD = "memory nodes", HOST | {"allowed_nodes": "1"}, HOST | {"allowed_cpus": "0-255"}
ENDLESS = HOST | {"memory_left_bytes": 2**63 - 4096}
SLOW, NARROW = {"now": {3: "gen 3 x8"}}, {"now": {0: "gen 1 x16", 1: "gen 1 x8"}, "awake": {0: False, 1: False}}
DENIED = h200() | {"direct_copies": copies("allowed", _0_3="not supported", _2_5="not supported")}
NO_P2P = L40S | {"direct_copies": {"0-1": "switched off in the driver"}}
CARD = {
    "name": "mlx5_0",
    "kind": "network",
    "card": "gen 5 x16",
    "slot": "gen 5 x16",
    "now": "gen 5 x8",
    "numa_node": 0,
}
DISK = {"name": "nvme0", "kind": "NVMe", "now": "gen 3 x4", "card": "gen 4 x4", "slot": None, "numa_node": 0}
WALLED = HOST | {"quota_cores": 2.5, "memory_left_bytes": 8_000_000_000, "container": "docker"}
SILENT: dict[str, Any] = {
    "gpus": [{"index": 0, "name": "a new GPU", "compute_capability": [9, 0]}],
    "matrix": None,
    "unavailable": ["libnvidia-ml cannot be opened"],
    "nodes": TWO_NODES,
    "nccl": {"NCCL_P2P_DISABLE": "1"},
    "allowed_cpus": "0-3",
    "allowed_nodes": "0",
}


@pytest.mark.parametrize(
    ("parts", "who", "name", "value_here", "expected", "verdict", "why"),
    [
        ({"gpus": h200(**SLOW)}, "GPU 3", "PCIe link", "gen 3 x8", "gen 5 x16", "failed", None),
        ({"gpus": h200(**SLOW)}, "GPU 2", "PCIe link", "gen 5 x16", "gen 5 x16", "ok", None),
        # An older slot is no fault, and neither is an idle GPU's generation; its lanes are.
        ({"gpus": OLD}, "GPU 0", "PCIe link", "gen 4 x16", "gen 5 x16", "caution", "slot has no more"),
        ({"gpus": h200(**NARROW)}, "GPU 0", "PCIe link", "gen 1 x16", "gen 5 x16", "unknown", "idle"),
        ({"gpus": h200(**NARROW)}, "GPU 1", "PCIe link", "gen 1 x8", "gen 5 x16", "failed", "idle"),
        ({"gpus": SILENT}, "GPU 0", "PCIe link", None, "gen 5 x16", "unknown", None),
        ({"gpus": SILENT}, "NCCL_P2P_DISABLE", "set to", "1", "not set", "caution", "NCCL"),
        ({"gpus": DOWN}, "GPU 2", "NVLinks", 17, 18, "failed", "down"),
        ({"gpus": UNBRIDGED}, "GPU 2", "NVLinks", 0, 4, "caution", "bridge"),
        ({"host": HOST | {"pcie": [CARD]}}, "mlx5_0", "PCIe link", "gen 5 x8", "gen 5 x16", "failed", None),
        ({"host": HOST | {"pcie": [DISK]}}, "nvme0", "PCIe link", "gen 3 x4", "gen 4 x4", "caution", "unknown"),
        ({"host": REMOTE}, "this process", NEAR, "CPUs of 0, memory of 1", "0", "failed", "another node"),
        ({"host": SPREAD}, "this process", NEAR, "CPUs of 0-1, memory of 0-1", "one node", "caution", "numactl --cpu"),
        ({"host": WALLED}, "control group", "CPU quota", 2.5, 128, "caution", "stopped"),
        ({"host": WALLED}, "control group", "memory limit", 8e9, float(2 << 40), "caution", None),
        # Some systems write the largest number there is where there is no limit.
        ({"host": ENDLESS}, "control group", "memory limit", "none", "none", "ok", None),
        ({"gpus": DENIED}, "GPU 0-3, GPU 2-5", "direct copies", "not supported", "allowed", "failed", "NVLink joins"),
        ({"gpus": DENIED}, "26 pairs of GPUs", "direct copies", "allowed", "allowed", "ok", None),
        ({"gpus": NO_P2P}, "GPU 0-1", "direct copies", "switched off in the driver", "allowed", "caution", "host's"),
        # Packets that were sent again are no fault by themselves.
        ({"gpus": h200(pcie_replays={4: 0})}, "GPU 4", "PCIe packets sent again", 0, 0, "ok", None),
        ({"gpus": h200(pcie_replays={6: 1})}, "GPU 6", "PCIe packets sent again", 1, 0, "unknown", "harmless"),
    ],
)
def test_each_part_is_judged_by_what_it_could_be(parts, who, name, value_here, expected, verdict, why):
    findings = found_in(**parts)
    row = checks(findings)[who, name]
    plain = [cell.value if isinstance(cell, Quantity) else cell for cell in (row["found"], row["expected"])]
    assert (*plain, row["verdict"]) == (value_here, expected, verdict)
    assert (why or "") in (row["why"] or "")
    message = troubles(findings).get((who, name))
    assert (message is not None) == (verdict in ("caution", "failed") or bool(verdict == "unknown" and why))
    assert message is None or (message.kind == "caution") == (verdict != "unknown")


def test_a_links_rate_stands_beside_what_it_could_be():
    row = checks(found_in(gpus=h200(**SLOW)))["GPU 3", "PCIe link"]
    assert (row["rate"].value, row["of"].value) == (pytest.approx(7.88e9, rel=0.01), pytest.approx(63e9, rel=0.01))


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


@pytest.mark.parametrize(
    ("gb_per_s", "capability", "nvlinks"),
    [
        *((450, (9, 0), 18), (300, (8, 0), 12), (900, (10, 0), 18), (56.25, (8, 6), 4), (200, (8, 0), 8)),
        # Rates of no more than the slot: L40S, T4, RTX 5090, V100 for PCIe; and P100, older than the links listed.
        *((32, (8, 9), 0), (16, (7, 5), 0), (64, (12, 0), 0), (16, (7, 0), 0), (80, (6, 0), 0)),
    ],
)
def test_a_gpu_has_as_many_nvlinks_as_its_data_sheet_adds_up_to(gb_per_s, capability, nvlinks):
    assert nvlinks_per_gpu(gb_per_s, capability) == nvlinks
