"""How the machine's parts are connected, beside what they are made for: read in a second, nothing is timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from pyperf_suite.hardware.devices import Device
from pyperf_suite.hardware.kernel_files import parse_cpu_list
from pyperf_suite.hardware.links import nvlink_of, pcie_of
from pyperf_suite.hardware.topology import PATHS, LinkGraph, Path
from pyperf_suite.operators.training.topology import TopologyParameters
from pyperf_suite.probes.probe import Probe
from pyperf_suite.probes.training.claims import TRANSFORMERS
from pyperf_suite.probes.training.topology_checks import VERDICTS, Check, gpu_checks, host_checks, sentences
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.spec.findings import Findings, Table

ADVICE = f"the less often they sync, as under DDP, the less a slow path costs; ZeRO and TP talk often ({TRANSFORMERS})"
MIB = 2**20


@dataclass(frozen=True)
class TopologyAxes:
    """Which parts are read: "host", "gpus"."""

    part: tuple[str, ...]


class Topology(Probe):
    """Sockets, memory nodes and PCIe links of the host, and the GPUs' slots, NVLinks and paths to each other."""

    name = "topology"
    question = "How are the parts of this machine connected, and do their links run as they are made to?"
    is_timed = False

    def axes(self, profile: str, device: Device) -> TopologyAxes:
        """The same in every profile: there is nothing to do more thoroughly."""
        return TopologyAxes(("host", "gpus") if device.kind == "cuda" else ("host",))

    def sweep(self, axes: TopologyAxes) -> list[Case]:
        """One case a part."""
        return [Case("topology", TopologyParameters(part), "system") for part in dict.fromkeys(axes.part)]

    def findings(self, records: Sequence[Record]) -> Findings:
        """What is there, what is not as it should be, and tables of checks, paths and memory nodes."""
        read = [record for record in records if record.kind == "static" and record.outcome == "ok"]
        parts = {record.kernel["path"]: record.kernel["details"] for record in read}
        told: list[str] = []
        checks: list[Check] = []
        tables: list[Table] = []
        if host := parts.get("host"):
            told.append(_host_sentence(host))
            checks += host_checks(host)
            tables += _node_tables(host)
        if found := parts.get("gpus"):
            graph = LinkGraph.from_json(found["matrix"]) if found["matrix"] else None
            told += _gpu_sentences(found, graph)
            checks += gpu_checks(found)
            tables += [_matrix_table(graph)] if graph and len(graph.gpus) > 1 else []
        if not told:
            return Findings()
        told += [_summary(checks), *sentences(checks)]
        rows = tuple((check.part, check.what, check.found, check.expected, check.verdict) for check in checks)
        checked = Table("What was found, against what could be", ("part", "what", "found", "could be", "verdict"), rows)
        return Findings(tuple(told), (checked, *tables))


def _host_sentence(host: Mapping[str, Any]) -> str:
    threads, cores = len(parse_cpu_list(host["online"])), host["cores"]
    smt = f", {threads // cores} threads each" if cores and threads > cores else ""
    nodes = host["nodes"]
    memory = ", ".join(f"{node['memory_bytes'] / 1e9:.1f}" for node in nodes)
    caches = ", ".join(
        f"{level} {_instances(host[f'{key}_bytes'], host[f'{key}_total_bytes'])}"
        for level, key in (("L2", "l2"), ("L3", "l3"))
        if host[f"{key}_bytes"]
    )
    walls = [f"a virtual machine ({host['hypervisor']})"] if host["hypervisor"] else []
    walls += [f"a container ({host['container']})"] if host["container"] else []
    links = "" if host["pcie"] else "; no device tells a PCIe link"
    inside = f"; inside {' and '.join(walls)}, so all of this is what it was told" if walls else ""
    return (
        f"{host['model']}: {_counted(host['sockets'], 'socket')}, {_counted(cores, 'core')}{smt}, "
        f"{_counted(len(nodes), 'NUMA node')} with {memory or 'unknown'} GB, "
        f"{caches}{' (assumed)' if host['caches_assumed'] else ''}{links}{inside}."
    )


def _gpu_sentences(found: Mapping[str, Any], graph: LinkGraph | None) -> Iterator[str]:
    """Which GPUs there are, and by which paths they reach each other and the network."""
    names = Counter(gpu["name"] for gpu in found["gpus"])
    yield f"This process sees {', '.join(f'{count} x {name}' for name, count in names.items())}."
    for reason in found["unavailable"]:
        yield f"Not all can be told: {reason}."
    if graph is None:
        return
    mine = {gpu["smi"]: gpu for gpu in found["gpus"] if gpu.get("smi") in graph.gpus}
    if len(mine) > 1:
        yield _paths_sentence(graph, mine)
    lonely = [f"GPU {mine[name]['index']}" for name in graph.gpus_without_nvlink() if name in mine]
    if lonely:
        yield f"Other GPUs have NVLink to each other, {', '.join(lonely)} to none: not bridged, or the links are down."
    yield from _network_sentences(graph, mine)


def _paths_sentence(graph: LinkGraph, mine: Mapping[str, Mapping[str, Any]]) -> str:
    """How many pairs have which path, nearest first."""
    pairs: dict[Path, list[tuple[str, str]]] = {}
    for pair in combinations(mine, 2):
        pairs.setdefault(graph.path(*pair), []).append(pair)
    told = []
    for path in sorted(pairs, key=lambda path: (path.distance, -path.nvlinks)):
        major, minor = mine[pairs[path][0][0]]["compute_capability"]
        peak = path.peak_gb_per_s(nvlink_of((major, minor)), pcie_of((major, minor)))
        at_most = f", at most {peak:g} GB/s one way" if peak else ""
        kind = f" ({PATHS[path.kind]})" if path.kind in PATHS else ""
        told.append(f"{_counted(len(pairs[path]), 'pair')} by {path}{kind}{at_most}")
    linked = sum(len(found) for path, found in pairs.items() if path.nvlinks)
    joined = f"Paths between GPUs: {'; '.join(told)}"
    if linked == sum(map(len, pairs.values())):
        return f"{joined}. NVLink joins all pairs, as is best for ZeRO and TP, which talk often ({TRANSFORMERS})."
    return f"{joined}. {'NVLink joins not all pairs' if linked else 'No pair is joined by NVLink'}: {ADVICE}."


def _network_sentences(graph: LinkGraph, mine: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """The nearest network cards, and the GPUs that have none on their own side of the machine."""
    if not graph.nics:
        return
    nearest = {name: graph.nearest_nics(name) for name in mine}
    told = []
    for name, cards in nearest.items():
        path = min((graph.path(name, nic) for nic in graph.nics), key=lambda path: path.distance)
        told.append(f"GPU {mine[name]['index']} {', '.join(cards)} by {path}")
    yield f"Nearest network cards: {'; '.join(told)}."
    across = [name for name in mine if all(graph.path(name, nic).kind == "SYS" for nic in graph.nics)]
    if across and len(across) < len(mine):
        who = ", ".join(f"GPU {mine[name]['index']}" for name in across)
        yield f"No network card is on the side of {who}: what they send crosses the link between NUMA nodes."


def _summary(checks: Sequence[Check]) -> str:
    counts = Counter(check.verdict for check in checks)
    told = [f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]]
    return f"{_counted(len(checks), 'check')}: {', '.join(told)}."


def _matrix_table(graph: LinkGraph) -> Table:
    """nvidia-smi's matrix, by its own numbers."""
    devices = (*graph.gpus, *graph.nics)
    unknown = Path(None)
    rows = tuple(
        (
            one,
            *("X" if one == other else str(graph.paths.get((one, other), unknown)) for other in devices),
            graph.cpus.get(one, "-"),
            graph.numa.get(one, "-"),
        )
        for one in graph.gpus
    )
    columns = ("", *(graph.nic_names.get(device, device) for device in devices), "CPUs", "NUMA node")
    return Table("Paths as nvidia-smi topo -m has them", columns, rows)


def _node_tables(host: Mapping[str, Any]) -> Iterator[Table]:
    """Distances between memory nodes, where there are several."""
    nodes = host["nodes"]
    if len(nodes) < 2:
        return
    columns = ("node", "CPUs", "memory, GB", *(f"to {node['number']}" for node in nodes))
    rows = []
    for node in nodes:
        distances = [f"{distance / 10:.1f} x" for distance in node["distances"]]
        if len(distances) != len(nodes):
            distances = ["-"] * len(nodes)
        rows.append((str(node["number"]), node["cpus"], f"{node['memory_bytes'] / 1e9:.1f}", *distances))
    yield Table("Memory nodes, distances as the firmware has them", columns, tuple(rows))


def _instances(size: int, total: int) -> str:
    count = max(1, round(total / size))
    return f"{count} x {size / MIB:g} MiB"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'' if count == 1 else 's'}"
