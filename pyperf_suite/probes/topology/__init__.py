"""How the machine's parts are connected, beside what they are made for: read in a second, nothing is timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.kernel_files import parse_cpu_list
from pyperf_suite.hardware.links import nvlink_of, pcie_of
from pyperf_suite.hardware.topology import PATHS, LinkGraph, Path
from pyperf_suite.probes.topology.checks import EXPECTED, gpu_checks, host_checks, troubles
from pyperf_suite.runner.record import Case
from pyperf_suite.spec.findings import Cell, Findings, Heading, Remark, Table, findings, remark
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import Column, Rows, grouped, table
from pyperf_suite.spec.sources import TRANSFORMERS
from pyperf_suite.workloads.training.topology import TopologyParameters

CHECKS = (
    Column("part", priority=2),
    Column("what", priority=2),
    Column("found"),
    Column("could be", "expected"),
    Column("verdict", priority=2),
    Column("rate", unit="GB/s", priority=0),
    Column("of", "best_rate", "GB/s", priority=0),
)


@dataclass(frozen=True)
class TopologyAxes:
    """Which parts are read: "host", "gpus"."""

    part: tuple[str, ...] = ("host",)


def axes(_profile: str, device: Device) -> TopologyAxes:
    """The same in every profile: there is nothing to do more thoroughly."""
    return TopologyAxes(("host", "gpus")) if device.kind == "cuda" else TopologyAxes()


def sweep(axes: TopologyAxes) -> Iterator[Case]:
    """One case a part."""
    return (Case("topology", TopologyParameters(part), "system") for part in axes.part)


def analyse(rows: Rows) -> Findings:
    """What is there, what is not as it should be, and tables of checks, paths and memory nodes."""
    parts = {row.kernel["path"]: row.details for row in rows}
    host, gpus = parts.get("host"), parts.get("gpus")
    checks = [*(host_checks(host) if host else ()), *(gpu_checks(gpus) if gpus else ())]
    expected = sum(check.verdict == EXPECTED for check in checks)
    told = remark("{expected} of {checks} checks are as expected", expected=expected, checks=len(checks))
    return findings(
        told if parts else None,
        troubles(checks),
        table("What was found, against what could be", CHECKS, checks),
        _host(host) if host else None,
        _gpus(gpus) if gpus else None,
    )


def _host(host: Mapping[str, Any]) -> Iterator[Remark | Table]:
    """CPUs, caches, memory and the walls around this process; how far several memory nodes are apart."""
    for wall, name in (("virtual machine", host["hypervisor"]), ("container", host["container"])):
        if name:
            yield remark("Inside a {wall} ({name}), which told all of this", kind="caution", wall=wall, name=name)
    nodes, assumed = host["nodes"], " (assumed)" if host["caches_assumed"] else ""
    facts: list[tuple[str, Cell]] = [
        ("CPU", host["model"]),
        ("sockets", host["sockets"]),
        ("cores", host["cores"]),
        ("threads", len(parse_cpu_list(host["online"]))),
        ("NUMA nodes", len(nodes)),
        ("memory", Quantity(sum(node["memory_bytes"] for node in nodes), "size")),
        ("devices that tell a PCIe link", len(host["pcie"])),
    ]
    for level in ("l2", "l3"):
        size, total = host[f"{level}_bytes"], host[f"{level}_total_bytes"]
        if size:
            facts.append((f"{level.upper()}{assumed}", Quantity(size, "size")))
            facts.append((f"{level.upper()}, how many", max(1, round(total / size))))
    yield Table("The host", (Heading("what"), Heading("found")), tuple(facts))
    distances = (
        Column(f"to {other['number']}", partial(_distance, place, len(nodes)), "x") for place, other in enumerate(nodes)
    )
    columns = (
        Column("node", itemgetter("number")),
        Column("CPUs", itemgetter("cpus")),
        Column("memory", itemgetter("memory_bytes"), "size"),
        *distances,
    )
    yield table("Memory nodes, distances as the firmware has them", columns, nodes if len(nodes) > 1 else ())


def _distance(place: int, count: int, node: Mapping[str, Any]) -> float | None:
    return node["distances"][place] / 10 if len(node["distances"]) == count else None


def _gpus(found: Mapping[str, Any]) -> Iterator[Any]:
    """Which GPUs there are, and by which paths they reach each other and the network."""
    for name, count in Counter(gpu["name"] for gpu in found["gpus"]).items():
        yield remark("This process sees {count} of {name}", count=count, name=name)
    for reason in found["unavailable"]:
        yield remark("Not all can be known: {reason}", kind="caution", reason=reason)
    if found["matrix"] is not None:
        graph = LinkGraph.from_json(found["matrix"])
        mine = {gpu["smi"]: gpu for gpu in found["gpus"] if gpu.get("smi") in graph.gpus}
        yield from (_paths(graph, mine), _network(graph, mine) if graph.nics else None, _matrix(graph))


def _paths(graph: LinkGraph, mine: Mapping[str, Any]) -> Iterator[Remark | Table]:
    """How many pairs have which path, nearest first."""
    lonely = [f"GPU {mine[name]['index']}" for name in graph.gpus_without_nvlink() if name in mine]
    if lonely:
        told = "Other GPUs have NVLink to each other, {who} to none: not bridged, or the links are down"
        yield remark(told, kind="caution", who=", ".join(lonely))
    pairs = grouped(combinations(mine, 2), lambda pair: graph.path(*pair))
    if not pairs:
        return

    def peak(path: Path) -> float | None:
        capability = tuple(mine[pairs[path][0][0]]["compute_capability"])
        rate = path.peak_gb_per_s(nvlink_of(capability), pcie_of(capability))
        return rate and rate * 1e9

    columns = (
        Column("path", str),
        Column("by", lambda path: PATHS.get(path.kind or "")),
        Column("pairs", lambda path: len(pairs[path])),
        Column("at most, one way", peak, "GB/s"),
    )
    yield table("Paths between GPUs", columns, sorted(pairs, key=lambda path: (path.distance, -path.nvlinks)))
    linked, count = (sum(len(pairs[path]) for path in pairs if path.nvlinks or every) for every in (False, True))
    advice = ": the less often GPUs sync, as under DDP, the less a slow path costs; ZeRO and TP talk often"
    if linked == count:
        advice = ", as is best for ZeRO and TP, which talk often"
    told = f"NVLink joins {{linked}} of {{pairs}} pairs{advice} ({{source}})"
    yield remark(told, linked=linked, pairs=count, source=TRANSFORMERS)


def _network(graph: LinkGraph, mine: Mapping[str, Any]) -> Iterator[Remark | Table]:
    """The nearest network cards, and the GPUs that have none on their own side of the machine."""
    paths = {name: [graph.path(name, nic) for nic in graph.nics] for name in mine}
    columns = (
        Column("GPU", lambda name: mine[name]["index"]),
        Column("cards", lambda name: ", ".join(graph.nearest_nics(name))),
        Column("path", lambda name: str(min(paths[name], key=lambda path: path.distance))),
    )
    yield table("Network cards nearest to each GPU", columns, mine)
    across = [f"GPU {mine[name]['index']}" for name in mine if all(path.kind == "SYS" for path in paths[name])]
    if across and len(across) < len(mine):
        told = "No network card is on the side of {who}: what they send crosses the link between NUMA nodes"
        yield remark(told, kind="caution", who=", ".join(across))


def _matrix(graph: LinkGraph) -> Table | None:
    """nvidia-smi's matrix, by its own numbers."""

    def column(other: str) -> Column:
        name = graph.nic_names.get(other, other)
        return Column(name, lambda one: "X" if one == other else str(graph.paths.get((one, other), Path(None))))

    columns = (
        Column("", str),
        *map(column, (*graph.gpus, *graph.nics)),
        Column("CPUs", graph.cpus.get),
        Column("NUMA node", graph.numa.get),
    )
    return table("Paths as nvidia-smi topo -m has them", columns, graph.gpus if len(graph.gpus) > 1 else ())


PROBE = Probe(
    name="topology",
    question="How are the parts of this machine connected, and do their links run as they are made to?",
    topic="the machine",
    title="How the machine is connected",
    axes=axes,
    sweep=sweep,
    analyse=analyse,
    is_timed=False,
)
