"""What a machine's parts are connected by, compared with what they are made for: one check a part, with its verdict."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.kernel_files import cpu_list, parse_cpu_list
from pyperf_suite.hardware.links import PcieDevice, PcieLink, nvlinks_per_gpu, pcie_of
from pyperf_suite.hardware.nvml import ALLOWED
from pyperf_suite.hardware.topology import LinkGraph
from pyperf_suite.spec.findings import Cell, Remark, remark
from pyperf_suite.spec.quantity import Quantity
from pyperf_suite.spec.rows import grouped

# "could be more" is what was built or set that way; "below expectation" is what something is wrong with.
BELOW, MORE, NOT_TOLD, EXPECTED = VERDICTS = ("below expectation", "could be more", "not told", "as expected")
ON_BOARD = ("SXM", "GB", "GH")
LANES = 16
# A limit that leaves that share of the memory is none to speak of: some is always taken.
MUCH = 0.8


@dataclass(frozen=True)
class Check:
    """A part, what it is and what it could be; `why` says what that means. Links have their rates in B/s as well."""

    part: str
    what: str
    found: Cell
    expected: Cell
    verdict: str = EXPECTED
    why: str = ""
    rate: float | None = None
    best_rate: float | None = None


def troubles(checks: Iterable[Check]) -> Iterator[Remark]:
    """One remark for all parts that share what is not as expected, the worst first."""
    found = [check for check in checks if check.verdict in (BELOW, MORE) or check.why]
    same = grouped(found, lambda each: (each.verdict, each.what, each.found, each.expected, each.why))
    for members in sorted(same.values(), key=lambda members: VERDICTS.index(members[0].verdict)):
        check = members[0]
        yield remark(
            "{who}: {what} {found}, expected {expected} ({verdict})" + (f": {check.why}" if check.why else ""),
            kind="caution" if check.verdict == BELOW else "",
            # All are named: `GPU 0 to GPU 7` would hide a gap.
            who=", ".join(each.part for each in members),
            what=check.what,
            found=check.found,
            expected=check.expected,
            verdict=check.verdict,
        )


def host_checks(host: Mapping[str, Any]) -> Iterator[Check]:
    """Of CPUs, memory nodes and PCIe devices that are no GPU of CUDA's."""
    online, allowed = parse_cpu_list(host["online"]), parse_cpu_list(host["allowed_cpus"])
    if online and allowed:
        verdict = MORE if len(allowed) < len(online) else EXPECTED
        yield Check("this process", "CPUs", host["allowed_cpus"], host["online"], verdict)
    quota, cpus = host["quota_cores"], len(allowed or online)
    if quota is None:
        yield Check("control group", "CPU quota", "none", "none")
    else:
        told = (MORE, "more threads than that are stopped in between") if quota < cpus else (EXPECTED, "")
        yield Check("control group", "CPU quota", Quantity(quota), cpus, *told)
    left, total = host["memory_left_bytes"], sum(node["memory_bytes"] for node in host["nodes"])
    # Some systems write the largest number there is where there is no limit.
    if left is None or left > total:
        yield Check("control group", "memory limit", "none", "none")
    else:
        verdict = MORE if left < MUCH * total else EXPECTED
        yield Check("control group", "memory limit", Quantity(left, "size"), Quantity(total, "size"), verdict)
    yield from _memory_nodes(host, allowed)
    for device in map(PcieDevice.from_json, host["pcie"]):
        if device.kind != "GPU":
            yield link_check(device.name, device.now, device.slot, device.card)


def _memory_nodes(host: Mapping[str, Any], allowed: frozenset[int]) -> Iterator[Check]:
    """Whether the memory that this process may take is beside the CPUs that it may run on."""
    mine = {node["number"] for node in host["nodes"] if parse_cpu_list(node["cpus"]) & allowed}
    may = parse_cpu_list(host["allowed_nodes"]) & {node["number"] for node in host["nodes"] if node["memory_bytes"]}
    if not mine or not may:
        return
    found = f"CPUs of {cpu_list(mine)}, memory of {cpu_list(may)}"
    told = (found, EXPECTED, "")
    if not mine & may:
        told = (cpu_list(mine), BELOW, "all memory lies on another node than the CPUs")
    elif len(mine) > 1:
        why = "threads that move leave their memory behind, unless under numactl --cpunodebind=N --membind=N"
        told = ("one node", MORE, why)
    yield Check("this process", "memory nodes", found, *told)


def gpu_checks(found: Mapping[str, Any]) -> Iterator[Check]:
    """Of each GPU its slot, its NVLinks, its distance to this process; of all the copies between them and NCCL's."""
    for gpu in found["gpus"]:
        who, capability = f"GPU {gpu['index']}", tuple(gpu["compute_capability"])
        if gpu.get("now"):
            now, slot, card = (gpu[name] and PcieLink.parse(gpu[name]) for name in ("now", "slot", "card"))
            yield link_check(who, now, slot, card, awake=gpu["awake"])
        else:
            made_for = PcieLink(int(pcie_of(capability).name.split()[1]), LANES)
            yield Check(who, "PCIe link", None, str(made_for), NOT_TOLD)
        # Packets sent again: a link that is sound has next to none. A count without a time tells of no rate.
        count = gpu.get("pcie_replays")
        if count is not None:
            why = "a few over weeks are harmless; a count that grows while data moves is a bad seat, riser or cable"
            yield Check(who, "PCIe packets sent again", count, 0, *((NOT_TOLD, why) if count else (EXPECTED, "")))
        if "now" in gpu:
            yield from _nvlinks(who, gpu, is_alone=len(found["gpus"]) == 1)
            yield from _near(who, gpu, found)
    yield from _direct_copies(found)
    for name, value in found["nccl"].items():
        yield Check(name, "set to", value, "not set", MORE, "it narrows the paths that NCCL may take")


def link_check(
    who: str, now: PcieLink, slot: PcieLink | None = None, card: PcieLink | None = None, awake: bool = True
) -> Check:
    """A link beside what card and slot can agree on, and that beside the card.

    `awake` is False for a GPU that was seen idle: it may have gone back to an older generation to save power.
    """
    best = card.common(slot) if card else slot or now
    could, told = card or best, (EXPECTED, "")
    if now.common(best) != best:
        could, told = best, (BELOW, "")
        if not awake:
            told = (
                NOT_TOLD if now.width == best.width else BELOW,
                "it was seen idle, when links slow down to save power",
            )
        elif slot is None:
            told = (MORE, "whether the slot has more is not told")
    elif card and best != card:
        told = (MORE, "the slot has no more")
    rate, best_rate = (link.gb_per_s and link.gb_per_s * 1e9 for link in (now, could))
    if card is None and slot is None:
        return Check(who, "PCIe link", str(now), None, NOT_TOLD, rate=rate)
    return Check(who, "PCIe link", str(now), str(could), *told, rate, best_rate)


def _nvlinks(who: str, gpu: Mapping[str, Any], is_alone: bool) -> Iterator[Check]:
    """Active links beside those that the catalogue's GPU has; a bridge is the user's to buy, a board has them."""
    try:
        spec = find_gpu(gpu["name"])
    except UserError:
        return
    if spec.link_bytes_per_s is None:
        return
    has = nvlinks_per_gpu(spec.link_bytes_per_s / 1e9, tuple(gpu["compute_capability"]))
    active = sum(state is True for state in gpu["nvlinks"])
    if active >= has:
        told = (EXPECTED, "")
    elif is_alone:
        told = (NOT_TOLD, "")
    elif active or any(word in spec.name for word in ON_BOARD):
        told = (BELOW, "links are down")
    else:
        told = (MORE, "with a bridge")
    if has:
        yield Check(who, "NVLinks", active, has, *told)


def _near(who: str, gpu: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[Check]:
    """Whether this process may run beside the GPU: its CPUs against those that share the GPU's node."""
    near, allowed = parse_cpu_list(gpu["cpus"]), parse_cpu_list(found["allowed_cpus"])
    if near and allowed and len(found["nodes"]) > 1:
        told = (BELOW, "every copy crosses the link between nodes")
        if allowed <= near:
            told = (EXPECTED, "")
        elif allowed & near:
            told = (MORE, "bound to the GPU's CPUs, no copy crosses the link between nodes")
        place = "unknown node" if gpu["numa_node"] is None else f"node {gpu['numa_node']}"
        mine = f"this process on CPUs {found['allowed_cpus']}"
        yield Check(who, "near CPUs", f"{mine}, the GPU on {place}", gpu["cpus"], *told)


def _direct_copies(found: Mapping[str, Any]) -> Iterator[Check]:
    """What is allowed between the GPUs, one check for all pairs of which the same is said."""
    copies = found.get("direct_copies", {})
    paths = LinkGraph.from_json(found["matrix"]).paths if found["matrix"] else {}
    names = {str(gpu["index"]): gpu.get("smi") for gpu in found["gpus"]}

    def is_linked(pair: str) -> bool:
        one, other = (names.get(number) or "" for number in pair.split("-"))
        return (one, other) in paths and bool(paths[one, other].nvlinks)

    for (said, linked), pairs in grouped(copies, lambda pair: (copies[pair], is_linked(pair))).items():
        who = ", ".join(f"GPU {pair}" for pair in pairs)
        told = (MORE, "what they send each other goes through the host's memory")
        if said == ALLOWED:
            who, told = f"{len(pairs)} pair{'' if len(pairs) == 1 else 's'} of GPUs", (EXPECTED, "")
        elif linked:
            told = (BELOW, "though NVLink joins them")
        yield Check(who, "direct copies", said, ALLOWED, *told)
