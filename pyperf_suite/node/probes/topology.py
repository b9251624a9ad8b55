"""How the machine's parts are connected, compared with what they are made for; read in a second, nothing is timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from operator import itemgetter
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, UserError
from pyperf_suite.findings.axes import AxisTable, by
from pyperf_suite.findings.data import TRANSFORMERS, Cell, Findings, Heading, Remark, Table, findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Column, Rows, grouped, table
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.kernel_files import cpu_list, parse_cpu_list
from pyperf_suite.hardware.links import PcieDevice, PcieLink, nvlink_of, pcie_of
from pyperf_suite.hardware.nvml import ALLOWED
from pyperf_suite.hardware.topology import PATHS, LinkGraph, Path
from pyperf_suite.node.check import CAUTION, FAILED, OK, UNKNOWN, Check, check_table, sentences
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.workloads.exact import PARTS, TopologyParameters

ON_BOARD = ("SXM", "GB", "GH")
LANES = 16
# A limit that leaves that share of the memory is none to speak of: some is always taken.
MEMORY_LIMIT_SHARE = 0.8


def host_checks(host: Mapping[str, Any]) -> Iterator[Check]:
    """Yield checks of CPUs, memory nodes and PCIe devices that are no GPU of CUDA's."""
    online, allowed = parse_cpu_list(host["online"]), parse_cpu_list(host["allowed_cpus"])
    if online and allowed:
        verdict = CAUTION if len(allowed) < len(online) else OK
        yield Check("this process", "CPUs", host["allowed_cpus"], host["online"], verdict)
    quota, cpus = host["quota_cores"], len(allowed or online)
    if quota is None:
        yield Check("control group", "CPU quota", "none", "none")
    else:
        judged = (CAUTION, "more threads than that are stopped in between") if quota < cpus else (OK, "")
        yield Check("control group", "CPU quota", Quantity(quota), cpus, *judged)
    left, total = host["memory_left_bytes"], sum(node["memory_bytes"] for node in host["nodes"])
    # Some systems write the largest number there is where there is no limit.
    if left is None or left > total:
        yield Check("control group", "memory limit", "none", "none")
    else:
        verdict = CAUTION if left < MEMORY_LIMIT_SHARE * total else OK
        yield Check("control group", "memory limit", Quantity(left, "size"), Quantity(total, "size"), verdict)
    yield from _memory_nodes(host, allowed)
    for device in map(PcieDevice.from_json, host["pcie"]):
        if device.kind != "GPU":
            yield link_check(device.name, device.now, device.slot, device.card)


def _memory_nodes(host: Mapping[str, Any], allowed: frozenset[int]) -> Iterator[Check]:
    """Check that the memory that this process may take is on the nodes of the CPUs that it may run on."""
    mine = {node["number"] for node in host["nodes"] if parse_cpu_list(node["cpus"]) & allowed}
    may = parse_cpu_list(host["allowed_nodes"]) & {node["number"] for node in host["nodes"] if node["memory_bytes"]}
    if not mine or not may:
        return
    nodes = f"CPUs of {cpu_list(mine)}, memory of {cpu_list(may)}"
    message = (nodes, OK, "")
    if not mine & may:
        message = (cpu_list(mine), FAILED, "all memory lies on another node than the CPUs")
    elif len(mine) > 1:
        why = "threads that move leave their memory behind, unless under numactl --cpunodebind=N --membind=N"
        message = ("one node", CAUTION, why)
    yield Check("this process", "memory nodes", nodes, *message)


def gpu_checks(report: Mapping[str, Any]) -> Iterator[Check]:
    """Yield checks of each GPU's slot, NVLinks and distance to this process, of the copies between GPUs and NCCL's."""
    for gpu in report["gpus"]:
        who, capability = f"GPU {gpu['index']}", tuple(gpu["compute_capability"])
        if gpu.get("now"):
            now, slot, card = (gpu[name] and PcieLink.parse(gpu[name]) for name in ("now", "slot", "card"))
            yield link_check(who, now, slot, card, awake=gpu["awake"])
        else:
            made_for = PcieLink(int(pcie_of(capability).name.split()[1]), LANES)
            yield Check(who, "PCIe link", None, str(made_for), UNKNOWN)
        # Packets sent again: a link that is sound has next to none. A count without a time is no rate.
        count = gpu.get("pcie_replays")
        if count is not None:
            why = "a few over weeks are harmless; a count that grows while data moves is a bad seat, riser or cable"
            yield Check(who, "PCIe packets sent again", count, 0, *((UNKNOWN, why) if count else (OK, "")))
        if "now" in gpu:
            yield from _nvlinks(who, gpu, is_alone=len(report["gpus"]) == 1)
            yield from _near(who, gpu, report)
    yield from _direct_copies(report)
    for name, value in report["nccl"].items():
        yield Check(name, "set to", value, "not set", CAUTION, "it narrows the paths that NCCL may take")


def link_check(
    who: str, now: PcieLink, slot: PcieLink | None = None, card: PcieLink | None = None, awake: bool = True
) -> Check:
    """A link compared with what card and slot can agree on, and that compared with the card.

    `awake` is False for a GPU that was seen idle: it may have gone back to an older generation to save power.
    """
    best = card.common(slot) if card else slot or now
    could, message = card or best, (OK, "")
    if now.common(best) != best:
        could, message = best, (FAILED, "")
        if not awake:
            is_wide = now.width == best.width
            message = (UNKNOWN if is_wide else FAILED, "it was seen idle, when links slow down to save power")
        elif slot is None:
            message = (CAUTION, "whether the slot has more is unknown")
    elif card and best != card:
        message = (CAUTION, "the slot has no more")
    rate, best_rate = (link.gb_per_s and link.gb_per_s * 1e9 for link in (now, could))
    if card is None and slot is None:
        return Check(who, "PCIe link", str(now), None, UNKNOWN, rate=rate)
    return Check(who, "PCIe link", str(now), str(could), *message, rate, best_rate)


def nvlinks_per_gpu(link_gb_per_s: float, compute_capability: tuple[int, int]) -> int:
    """Return the NVLinks of a GPU whose links to others carry that together (GB/s, one direction), 0 without any.

    A rate that a PCIe slot carries is the slot's.
    """
    nvlink = nvlink_of(compute_capability)
    if nvlink is None or nvlink.per_link_gb_per_s is None:
        return 0
    if link_gb_per_s <= 1.05 * pcie_of(compute_capability).gb_per_s:
        return 0
    return round(link_gb_per_s / nvlink.per_link_gb_per_s)


def _nvlinks(who: str, gpu: Mapping[str, Any], is_alone: bool) -> Iterator[Check]:
    """Active links compared with those of the catalogue's GPU. A bridge is bought separately, a board has them."""
    try:
        spec = find_gpu(gpu["name"])
    except UserError:
        return
    if spec.link_bytes_per_s is None:
        return
    has = nvlinks_per_gpu(spec.link_bytes_per_s / 1e9, tuple(gpu["compute_capability"]))
    active = sum(state is True for state in gpu["nvlinks"])
    if active >= has:
        message = (OK, "")
    elif is_alone:
        message = (UNKNOWN, "")
    elif active or any(word in spec.name for word in ON_BOARD):
        message = (FAILED, "links are down")
    else:
        message = (CAUTION, "with a bridge")
    if has:
        yield Check(who, "NVLinks", active, has, *message)


def _near(who: str, gpu: Mapping[str, Any], report: Mapping[str, Any]) -> Iterator[Check]:
    """Check that this process may run near the GPU: its CPUs compared with those of the GPU's node."""
    near, allowed = parse_cpu_list(gpu["cpus"]), parse_cpu_list(report["allowed_cpus"])
    if near and allowed and len(report["nodes"]) > 1:
        message = (FAILED, "every copy crosses the link between nodes")
        if allowed <= near:
            message = (OK, "")
        elif allowed & near:
            message = (CAUTION, "bound to the GPU's CPUs, no copy crosses the link between nodes")
        place = "unknown node" if gpu["numa_node"] is None else f"node {gpu['numa_node']}"
        mine = f"this process on CPUs {report['allowed_cpus']}"
        yield Check(who, "near CPUs", f"{mine}, the GPU on {place}", gpu["cpus"], *message)


def _direct_copies(report: Mapping[str, Any]) -> Iterator[Check]:
    """Yield the permissions of copies between the GPUs, one check for all pairs with the same answer."""
    copies = report.get("direct_copies", {})
    paths = LinkGraph.from_json(report["matrix"]).paths if report["matrix"] else {}
    names = {str(gpu["index"]): gpu.get("smi") for gpu in report["gpus"]}

    def is_linked(pair: str) -> bool:
        one, other = (names.get(number) or "" for number in pair.split("-"))
        return (one, other) in paths and bool(paths[one, other].nvlinks)

    for (answer, linked), pairs in grouped(copies, lambda pair: (copies[pair], is_linked(pair))).items():
        who = ", ".join(f"GPU {pair}" for pair in pairs)
        message = (CAUTION, "what they send each other goes through the host's memory")
        if answer == ALLOWED:
            who, message = f"{len(pairs)} pair{'' if len(pairs) == 1 else 's'} of GPUs", (OK, "")
        elif linked:
            message = (FAILED, "though NVLink joins them")
        yield Check(who, "direct copies", answer, ALLOWED, *message)


@dataclass(frozen=True)
class TopologyAxes(AxisTable):
    """Parts to read, the same in every profile."""

    part: Annotated[tuple[str, ...], OneOf(PARTS)] = by(PARTS[:1], cuda=PARTS)


def sweep(axes: TopologyAxes) -> Iterator[Case]:
    """One case a part."""
    return (Case("topology", TopologyParameters(part), "system") for part in axes.part)


def analyse(rows: Rows[TopologyParameters]) -> Findings:
    """Return the parts of the machine, those that are not as they should be, and tables of checks, paths and nodes."""
    parts = {row.reading.kernel["path"]: row.reading.details for row in rows}
    host, gpus = parts.get("host"), parts.get("gpus")
    checks = [*(host_checks(host) if host else ()), *(gpu_checks(gpus) if gpus else ())]
    good = sum(check.verdict == OK for check in checks)
    return findings(
        remark("{ok} of {checks} checks are ok", ok=good, checks=len(checks)) if parts else None,
        sentences(checks),
        check_table("What was found, against what could be", checks),
        _host(host) if host else None,
        _gpus(gpus) if gpus else None,
    )


def _host(host: Mapping[str, Any]) -> Iterator[Remark | Table]:
    """CPUs, caches, memory and the walls around this process; how far several memory nodes are apart."""
    for wall, name in (("virtual machine", host["hypervisor"]), ("container", host["container"])):
        if name:
            yield remark("Reported from inside a {wall} ({name})", kind="caution", wall=wall, name=name)
    nodes, assumed = host["nodes"], " (assumed)" if host["caches_assumed"] else ""
    facts: list[tuple[str, Cell]] = [
        ("CPU", host["model"]),
        ("sockets", host["sockets"]),
        ("cores", host["cores"]),
        ("threads", len(parse_cpu_list(host["online"]))),
        ("NUMA nodes", len(nodes)),
        ("memory", Quantity(sum(node["memory_bytes"] for node in nodes), "size")),
        ("devices that report a PCIe link", len(host["pcie"])),
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


def _gpus(report: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the GPUs that this process sees, and the paths by which they reach each other and the network."""
    for name, count in Counter(gpu["name"] for gpu in report["gpus"]).items():
        yield remark("This process sees {count} of {name}", count=count, name=name)
    for reason in report["unavailable"]:
        yield remark("Not all can be known: {reason}", kind="caution", reason=reason)
    if report["matrix"] is not None:
        graph = LinkGraph.from_json(report["matrix"])
        mine = {gpu["smi"]: gpu for gpu in report["gpus"] if gpu.get("smi") in graph.gpus}
        yield from (_paths(graph, mine), _network(graph, mine) if graph.nics else None, _matrix(graph))


def _paths(graph: LinkGraph, mine: Mapping[str, Any]) -> Iterator[Remark | Table]:
    """How many pairs have which path, nearest first."""
    lonely = [f"GPU {mine[name]['index']}" for name in graph.gpus_without_nvlink() if name in mine]
    if lonely:
        message = "Other GPUs have NVLink to each other, {who} to none: not bridged, or the links are down"
        yield remark(message, kind="caution", who=", ".join(lonely))
    pairs = grouped(combinations(mine, 2), lambda pair: graph.path(*pair))
    if not pairs:
        return

    def peak(path: Path) -> float | None:
        capability = tuple(mine[pairs[path][0][0]]["compute_capability"])
        rate = path.peak_gb_per_s(capability)
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
    message = f"NVLink joins {{linked}} of {{pairs}} pairs{advice} ({{source}})"
    yield remark(message, linked=linked, pairs=count, source=TRANSFORMERS)


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
        message = "No network card is on the side of {who}: what they send crosses the link between NUMA nodes"
        yield remark(message, kind="caution", who=", ".join(across))


def _matrix(graph: LinkGraph) -> Table | None:

    def column(device: str) -> Column:
        name = graph.nic_names.get(device, device)
        return Column(name, lambda one: "X" if one == device else str(graph.paths.get((one, device), Path(None))))

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
    axes=TopologyAxes.of,
    sweep=sweep,
    analyse=analyse,
    is_timed=False,
)
