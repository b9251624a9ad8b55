"""What a machine's parts should be connected by, beside what they are: one check a part, with its verdict."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import GpuSpec, find_gpu
from pyperf_suite.hardware.kernel_files import cpu_list, parse_cpu_list
from pyperf_suite.hardware.links import nvlinks_per_gpu, pcie_of
from pyperf_suite.hardware.nvml import ALLOWED
from pyperf_suite.hardware.pcie import PcieDevice, PcieLink
from pyperf_suite.hardware.topology import LinkGraph

# "could be more" is what was built or set that way; "below expectation" is what something is wrong with.
Verdict = Literal["as expected", "could be more", "below expectation", "not told"]
VERDICTS: tuple[Verdict, ...] = ("as expected", "could be more", "below expectation", "not told")
ON_BOARD = ("SXM", "GB", "GH")
LANES = 16
# A limit that leaves that share of the memory is none to speak of: some is always taken.
MUCH = 0.8


@dataclass(frozen=True)
class Check:
    """A part, what it is and what it could be. `sentence` tells what is not as expected.

    It has a place `{who}` for the parts that share it, and `{s}` for the verb's ending where it is one part.
    """

    part: str
    what: str
    found: str
    expected: str
    verdict: Verdict
    sentence: str = ""


def sentences(checks: Sequence[Check]) -> list[str]:
    """One sentence for all parts that share it, the worst first."""
    parts: dict[str, list[str]] = {}
    for verdict in ("below expectation", "could be more", "not told"):
        for check in checks:
            if check.verdict == verdict and check.sentence:
                parts.setdefault(f"{check.sentence} ({verdict}).", []).append(check.part)
    told = [
        sentence.replace("{who}", _joined(who)).replace("{s}", "s" if len(who) == 1 else "")
        for sentence, who in parts.items()
    ]
    # Names of devices stay as they are written.
    return [re.sub(r"^(this|the) ", lambda word: word[0].capitalize(), sentence) for sentence in told]


def host_checks(host: Mapping[str, Any]) -> Iterator[Check]:
    """Of CPUs, memory nodes and PCIe devices that are no GPU of CUDA's."""
    online, allowed = parse_cpu_list(host["online"]), parse_cpu_list(host["allowed_cpus"])
    if online and allowed:
        narrowed = len(allowed) < len(online)
        yield Check(
            "this process",
            "CPUs",
            host["allowed_cpus"],
            host["online"],
            "could be more" if narrowed else "as expected",
            f"{{who}} may run on {len(allowed)} of {len(online)} CPUs ({host['allowed_cpus']})" if narrowed else "",
        )
    yield from _quota(host, len(allowed or online))
    yield _memory_limit(host)
    yield from _memory_nodes(host, allowed)
    for each in host["pcie"]:
        device = PcieDevice.from_json(each)
        if device.kind != "GPU":
            yield link_check(device.name, device.now, device.slot, device.card)


def gpu_checks(found: Mapping[str, Any]) -> Iterator[Check]:
    """Of each GPU its slot, its NVLinks, its distance to this process; of all the copies between them and NCCL's."""
    for gpu in found["gpus"]:
        who, capability = f"GPU {gpu['index']}", tuple(gpu["compute_capability"])
        spec = _catalogued(gpu["name"])
        if "now" not in gpu:
            yield Check(who, "PCIe link", "not told", str(PcieLink(_made_for(capability), LANES)), "not told")
            continue
        now, slot, card = (PcieLink.parse(gpu[name]) if gpu[name] else None for name in ("now", "slot", "card"))
        if now is None:
            yield Check(who, "PCIe link", "not told", str(PcieLink(_made_for(capability), LANES)), "not told")
        else:
            yield link_check(who, now, slot, card, awake=gpu["awake"])
        yield from _replays(who, gpu.get("pcie_replays"))
        yield from _nvlinks(who, gpu, spec, len(found["gpus"]))
        yield from _near(who, gpu, found)
    yield from _direct_copies(found)
    for name, value in found["nccl"].items():
        yield Check(
            name,
            "NCCL",
            value,
            "not set",
            "could be more",
            f"{{who}}={value} is set, and narrows the paths that NCCL may take",
        )


def link_check(
    who: str, now: PcieLink, slot: PcieLink | None = None, card: PcieLink | None = None, awake: bool = True
) -> Check:
    """A link beside what card and slot can agree on, and that beside the card.

    `awake` is False for a GPU that was seen idle: it may have gone back to an older generation to save power.
    """
    best = card.common(slot) if card else slot or now
    if now.common(best) != best:
        ask = "" if awake else ", seen idle, when links slow down to save power"
        told = f"{{who}} run{{s}} at PCIe {now} of {best}: {_rates(now, best)}{ask}"
        verdict: Verdict = "below expectation"
        if not awake and now.width == best.width:
            verdict = "not told"
        elif slot is None:
            verdict, told = "could be more", f"{told}; whether the slot has more is not told"
        return Check(who, "PCIe link", str(now), str(best), verdict, told)
    if card and best != card:
        told = f"{{who}} run{{s}} at PCIe {now}, as the slot has it, of {card} that the card has: {_rates(now, card)}"
        return Check(who, "PCIe link", str(now), str(card), "could be more", told)
    if card is None and slot is None:
        return Check(who, "PCIe link", str(now), "not told", "not told")
    return Check(who, "PCIe link", str(now), str(best), "as expected")


def _quota(host: Mapping[str, Any], cpus: int) -> Iterator[Check]:
    quota = host["quota_cores"]
    if quota is None:
        yield Check("control group", "CPU quota", "none", "none", "as expected")
        return
    told = f"the {{who}} grants {quota:g} cores' time on {cpus} CPUs: more threads than that are stopped in between"
    narrow = quota < cpus
    verdict: Verdict = "could be more" if narrow else "as expected"
    yield Check("control group", "CPU quota", f"{quota:g} cores", f"{cpus} cores", verdict, told if narrow else "")


def _memory_limit(host: Mapping[str, Any]) -> Check:
    left, total = host["memory_left_bytes"], sum(node["memory_bytes"] for node in host["nodes"])
    # Some systems write the largest number there is where there is no limit.
    if left is None or left > total:
        return Check("control group", "memory limit", "none", "none", "as expected")
    told = (
        f"the {{who}} leaves this process {left / 1e9:.1f} GB of memory, of {total / 1e9:.1f} GB that the machine has"
    )
    narrow = left < MUCH * total
    verdict: Verdict = "could be more" if narrow else "as expected"
    found, expected = f"{left / 1e9:.1f} GB left", f"{total / 1e9:.1f} GB"
    return Check("control group", "memory limit", found, expected, verdict, told if narrow else "")


def _memory_nodes(host: Mapping[str, Any], allowed: frozenset[int]) -> Iterator[Check]:
    """Whether the memory that this process may take is beside the CPUs that it may run on."""
    nodes = {node["number"]: parse_cpu_list(node["cpus"]) for node in host["nodes"]}
    with_memory = {node["number"] for node in host["nodes"] if node["memory_bytes"]}
    mine = {number for number, cpus in nodes.items() if cpus & allowed}
    may = parse_cpu_list(host["allowed_nodes"]) & with_memory
    if not mine or not may:
        return
    what, found = "memory nodes", f"CPUs of {cpu_list(mine)}, memory of {cpu_list(may)}"
    if not mine & may:
        told = f"{{who}} run{{s}} on NUMA node {cpu_list(mine)} and take{{s}} memory of node {cpu_list(may)} alone"
        yield Check("this process", what, found, cpu_list(mine), "below expectation", told)
    elif len(mine) > 1:
        told = (
            f"{{who}} may run on CPUs of NUMA nodes {cpu_list(mine)} and is bound to none: threads that move leave "
            "their memory behind the link between the nodes, unless started under numactl --cpunodebind=N --membind=N"
        )
        yield Check("this process", what, found, "one node", "could be more", told)
    else:
        yield Check("this process", what, found, found, "as expected")


def _nvlinks(who: str, gpu: Mapping[str, Any], spec: GpuSpec | None, count: int) -> Iterator[Check]:
    """Active links beside those that the catalogue's GPU has; a bridge is the user's to buy, a board has them."""
    if spec is None or spec.link_bytes_per_s is None or " MIG " in gpu["name"]:
        return
    has = nvlinks_per_gpu(spec.link_bytes_per_s / 1e9, tuple(gpu["compute_capability"]))
    active = sum(state is True for state in gpu["nvlinks"])
    if not has:
        return
    found, expected = f"{active} active", str(has)
    if active >= has:
        yield Check(who, "NVLink", found, expected, "as expected")
    elif count == 1:
        yield Check(who, "NVLink", found, expected, "not told")
    elif any(word in spec.name for word in ON_BOARD) or active:
        told = f"{{who}} show{{s}} {active} active NVLinks where {spec.name} has {has}"
        yield Check(who, "NVLink", found, expected, "below expectation", told)
    else:
        told = f"{{who}} show{{s}} no active NVLink where {spec.name} takes a bridge of {has}"
        yield Check(who, "NVLink", found, f"{has} with a bridge", "could be more", told)


def _replays(who: str, count: int | None) -> Iterator[Check]:
    """Packets sent again: a link that is sound has next to none."""
    if count is None:
        return
    told = (
        f"{{who}} sent {count} PCIe packet{'' if count == 1 else 's'} again since the driver was loaded: a few over "
        "weeks are harmless, a count that grows while data moves is a bad seat, riser or cable"
    )
    # A count without a time tells of no rate, so it alone is no fault.
    verdict: Verdict = "not told" if count else "as expected"
    yield Check(who, "PCIe packets sent again", str(count), "0", verdict, told if count else "")


def _direct_copies(found: Mapping[str, Any]) -> Iterator[Check]:
    """What is allowed between the GPUs, one check for all pairs of which the same is said."""
    pairs: dict[tuple[str, bool], list[str]] = {}
    for pair, said in found.get("direct_copies", {}).items():
        linked = said != ALLOWED and _joined_by_nvlink(found, pair)
        pairs.setdefault((said, linked), []).append(f"GPU {pair}")
    for (said, linked), named in pairs.items():
        what, who = "direct copies", _joined(named)
        if said == ALLOWED:
            who = f"{len(named)} pair{'' if len(named) == 1 else 's'} of GPUs"
            yield Check(who, what, said, ALLOWED, "as expected")
            continue
        told = f"{{who}}: no direct copies ({said}), so that what they send each other goes through the host's memory"
        if linked:
            told = f"{{who}}: no direct copies ({said}), though NVLink joins them"
        yield Check(who, what, said, ALLOWED, "below expectation" if linked else "could be more", told)


def _joined_by_nvlink(found: Mapping[str, Any], pair: str) -> bool:
    """Whether the matrix has NVLinks between two GPUs by CUDA's numbers."""
    if not found["matrix"]:
        return False
    graph = LinkGraph.from_json(found["matrix"])
    names = {str(gpu["index"]): gpu.get("smi") for gpu in found["gpus"]}
    one, other = (names.get(number) for number in pair.split("-"))
    return one in graph.gpus and other in graph.gpus and bool(graph.path(str(one), str(other)).nvlinks)


def _near(who: str, gpu: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Check]:
    """Whether this process may run beside the GPU: its CPUs against those that share the GPU's node."""
    near, allowed = parse_cpu_list(gpu["cpus"]), parse_cpu_list(found["allowed_cpus"])
    if not near or not allowed or len(found["nodes"]) < 2:
        return
    node, what = gpu["numa_node"], "NUMA node"
    place = f"CPUs {gpu['cpus']}" if node is None else f"node {node}"
    if allowed <= near:
        yield Check(who, what, f"{place}, this process too", place, "as expected")
    elif allowed & near:
        told = (
            f"{{who}} hang{{s}} on {place}, this process may run there and elsewhere: bind it to CPUs {gpu['cpus']}, "
            "lest its copies cross the link between nodes"
        )
        yield Check(who, what, f"{place}, this process anywhere", place, "could be more", told)
    else:
        told = (
            f"{{who}} hang{{s}} on {place}, and this process may only run on CPUs {found['allowed_cpus']}: every copy "
            "crosses the link between nodes"
        )
        yield Check(who, what, f"{place}, this process elsewhere", place, "below expectation", told)


def _catalogued(name: str) -> GpuSpec | None:
    """The catalogue's GPU of that name, of a MIG slice its whole; None where it has none."""
    try:
        return find_gpu(name.split(" MIG ")[0])
    except UserError:
        return None


def _made_for(capability: tuple[int, ...]) -> int:
    """The PCIe generation of GPUs of that compute capability."""
    return int(pcie_of((capability[0], capability[1])).name.split()[1])


def _rates(now: PcieLink, best: PcieLink) -> str:
    if now.gb_per_s is None or best.gb_per_s is None:
        return "rates not known"
    return f"{now.gb_per_s:.1f} of {best.gb_per_s:.1f} GB/s"


def _joined(parts: Sequence[str]) -> str:
    """`GPU 0 to GPU 7` would hide a gap: all are named."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
