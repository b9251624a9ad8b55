"""Is this node as fast as its parts should be? One check a line, for every device in turn: `pyperf-suite accept`.

What is measured and read comes from workloads that other probes explain. Expected is what the laws and published tables
say of a GPU, of a CPU its own calibration where the command is given one, else its peak with a wide interval.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pyperf_suite.errors import UserError
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.catalogue import capability_of
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.hardware.links import nvlink_of, pcie_of
from pyperf_suite.hardware.topology import Path
from pyperf_suite.laws.collectives import collective_time
from pyperf_suite.laws.explained import Explained
from pyperf_suite.laws.gemm import gemm_time
from pyperf_suite.laws.roofline import memory_bound_time
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.measure.telemetry import DISCARD_REASONS
from pyperf_suite.probes.collectives import tournament
from pyperf_suite.probes.collectives.curves import curves_of
from pyperf_suite.probes.collectives.ranks import SLOW, pair_maps
from pyperf_suite.probes.topology import BELOW, EXPECTED, gpu_checks, host_checks
from pyperf_suite.runner.record import Case, Record
from pyperf_suite.spec.axes import Sizes, every_size, sizes
from pyperf_suite.spec.findings import Findings, Quantity, Remark, findings, remark
from pyperf_suite.spec.probe import Probe
from pyperf_suite.spec.rows import Column, Rows, grouped, rows_of, table
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.exact import PARTS, TopologyParameters
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.training.layers import LayerPassParameters
from pyperf_suite.workloads.training.transfer import TransferParameters

OK, LOW, BAD, UNKNOWN, UNMEASURED = "ok", "low", "not ok", "nothing to compare with", "not measured"
# Of a healthy link, copies and NCCL reach this share of the peak at least; a link at half its rate reaches half of that.
LINK_SHARE = (0.6, 1.0)
# A CPU's products and copies, relative to its peak: units and clocks differ between models by more than a probe knows.
CPU_SHARE = (0.25, 1.1)
CPU_BYTES_A_CYCLE = (1.0, 32.0)
# Two ranks of gloo on one machine, bytes of the bus a second.
GLOO_RATE = (0.3e9, 50e9)
# A healthy part of one kind lies outside the interval in which nine of ten measurements lie once in ten times; outside
# one so many times as wide (of a logarithm) next to never.
WIDER = 1.5
# After two seconds of work, relative to a burst, on a CPU; a GPU's power cap has a law of its own.
SUSTAINED_SHARE = 0.85
# Under full load the power cap takes some of the clock, heat and brakes the rest.
LEAST_CLOCK = 0.6
# Cores that others may keep busy, and that the hypervisor may give away, on average.
TAKEN_CORES = 0.15
USUAL_CAUSES: Mapping[str, tuple[str, ...]] = {
    "matmul": ("power limit or cooling", "clocks held down", "another process"),
    "layer_pass": ("memory clock", "rows of memory remapped", "another process"),
    "transfer": ("PCIe link, riser or switch", "process on the far NUMA node", "IOMMU or ACS"),
    "collective": ("an NVLink or NVSwitch port is down", "P2P switched off or NCCL_* set", "one slow GPU"),
    "cpu": ("another process or virtual machine", "clock, cooling or governor", "memory channels not all filled"),
}


@dataclass(frozen=True)
class AcceptAxes:
    """Side of square products, bytes of a copy and of an all_reduce, ranks of it, and whether each two of them meet."""

    side: tuple[int, ...]
    workers: tuple[int, ...]
    copy_size: tuple[Sizes, ...]
    reduce_size: tuple[Sizes, ...]
    ranks: tuple[int, ...]
    kind: tuple[str, ...] = ("cpu",)


def axes(profile: str, device: Device) -> AcceptAxes:
    """The same in every profile: enough to judge a node by, and no more."""
    del profile
    if device.kind == "cpu":
        workers = tuple(dict.fromkeys((1, cpu.detect().usable_cores)))
        return AcceptAxes((1024,), workers, sizes("64MiB"), sizes("4MiB"), (2,))
    sm, count = gpus()[device.index].multiprocessors, len(gpus())
    return AcceptAxes((8192,), (sm,), sizes("256MiB"), sizes("256MiB"), (count,) if count > 1 else (), ("cuda",))


def sweep(axes: AcceptAxes) -> Iterator[Case]:
    """Products in a burst and on end, copies, an all_reduce and every pair; what is only read comes last."""
    on_gpu = "cuda" in axes.kind
    library, dtype, layout = ("cublas", "bfloat16", "TN") if on_gpu else ("torch", "float32", "NN")
    for side in axes.side:
        for workers in axes.workers:
            p = MatmulParameters(side, side, side, Schedule("library", workers), dtype=dtype, layout=layout)
            yield Case("matmul", p, library)
        yield Case("matmul", p, library, mode="sustained")
        if on_gpu:
            yield Case("layer_pass", LayerPassParameters("copy", seq=side, hidden=side, dtype=dtype), "torch")
    for size in every_size(axes.copy_size):
        if on_gpu:
            for way in ("host_to_device", "device_to_host"):
                yield Case("transfer", TransferParameters(size, pinned=True), way)
        else:
            yield from (Case("transfer", TransferParameters(size, workers), "torch") for workers in axes.workers)
    for ranks in axes.ranks:
        for size in every_size(axes.reduce_size):
            how = "nccl" if on_gpu else "gloo"
            yield Case("collective", CollectiveParameters("all_reduce", size, ranks, in_place=True), how)
            for pairs in tournament(ranks) if on_gpu else ():
                pattern = ",".join(f"{one}-{other}" for one, other in pairs)
                yield Case("collective", CollectiveParameters("ping_pong", size, ranks, pattern=pattern), how)
    yield from (Case("topology", TopologyParameters(part), "system") for part in (PARTS if on_gpu else PARTS[:1]))


class Expected(NamedTuple):
    """Seconds of a case between which a healthy part lies, and whose word that is."""

    seconds: float
    low: float
    high: float
    by: str


Expect = Callable[[Case], Expected | None]


@dataclass(frozen=True)
class AcceptCheck:
    """A part, what was measured or read of it, and what it should be; `why` says likely causes, or why it is unknown."""

    part: str
    what: str
    verdict: str
    found: Quantity | None = None
    expected: Quantity | None = None
    why: str = ""
    by: str = ""

    @property
    def off(self) -> float | None:
        """Relative to what is expected: -0.12 is 12 % low."""
        known = self.found is not None and self.expected is not None and self.expected.value > 0
        return self.found.value / self.expected.value - 1 if known and self.found and self.expected else None

    @property
    def unit(self) -> str:
        return self.found.unit if self.found and self.found.unit not in ("x", "count") else ""

    @property
    def is_bad(self) -> bool:
        return self.verdict in (LOW, BAD)


def checked(part: str, what: str, found: Quantity, expected: Quantity | None, causes: Iterable[str], by: str = "") -> Any:
    """A rate, which is low below the interval of what is expected; causes are told where it is."""
    verdict = UNKNOWN if expected is None else LOW if found.value < expected.low else OK
    return AcceptCheck(part, what, verdict, found, expected, "; ".join(causes) if verdict == LOW else "", by)


def checks_of(
    rows: Rows, expect: Expect | None = None, before: Mapping[tuple[str, str], Quantity] | None = None
) -> list[AcceptCheck]:
    """Every check of a run: `expect` replaces the laws, `before` has rates of an earlier run by part and check."""
    node = _Node(rows, expect, before or {})
    return [*node.rates(), *node.pairs(), *node.states(), *node.links(), *node.missing()]


class _Node:
    """The records of one run, with what they say about why something is slow."""

    def __init__(self, rows: Rows, expect: Expect | None, before: Mapping[tuple[str, str], Quantity]) -> None:
        self.rows, self.before = rows, before
        self.timed = [each for each in rows.records if each.kind == "timing"]
        self.identity = next((each.identity for each in rows.records), {})
        self.on_gpu = self.identity.get("kind") == "cuda"
        details = {row.kernel["path"]: row.details for row in rows if row.operator == "topology"}
        self.host, self.gpus = details.get("host"), details.get("gpus")
        by_default = self._by_law if self.on_gpu else self._by_peak
        self.expect = lambda case: (expect and expect(case)) or by_default(case)

    def device(self, record: Record) -> str:
        return str(record.state.get("device", "cuda:0" if self.on_gpu else "cpu"))

    def told(self, device: str) -> Mapping[str, Any]:
        """What the driver says of a GPU."""
        each = (self.gpus or {}).get("gpus", ())
        return next((gpu for gpu in each if f"cuda:{gpu['index']}" == device), {})

    def rates(self) -> Iterator[AcceptCheck]:
        """Of every case on every device the rate; of those on all ranks one for the node."""
        right = [each for each in self.timed if each.outcome == "ok" and not each.case["parameters"].get("pattern")]
        for (case_id, device), trials in grouped(right, lambda each: (each.case_id, self.device(each))).items():
            case = trials[0].parsed_case()
            seconds = [trial.seconds for trial in trials]
            amount, unit = _amount(case, trials[0])
            middle = statistics.median(seconds)
            found = Quantity(amount / middle, unit, amount / max(seconds), amount / min(seconds), len(seconds))
            part, what = "node" if case.operator == "collective" and self.on_gpu else device, _name(case)
            known = self.expect(case)
            expected, by = None, ""
            if known:
                ends = amount / known.high, amount / known.low
                expected, by = Quantity(amount / known.seconds, unit, *ends, predicted=True), known.by
            if (part, what) in self.before:
                expected, by = self.before[part, what], "the baseline"
            kind = case.operator if self.on_gpu else "cpu"
            yield checked(part, what, found, expected, (*self.evidence(device), *USUAL_CAUSES[kind]), by)
            if case.mode == "sustained" and not self.on_gpu:
                yield from self._ratio(part, case, middle)

    def _ratio(self, part: str, case: Case, seconds: float) -> Iterator[AcceptCheck]:
        burst = self.rows.first(operator="matmul", mode="burst", schedule=case.parameters.schedule)
        if burst is not None:
            ratio, expected = Quantity(burst.seconds / seconds, "x"), Quantity(1.0, "x", SUSTAINED_SHARE, 1.1, 0, True)
            yield checked(part, "sustained / burst", ratio, expected, (*self.evidence(part), *USUAL_CAUSES["cpu"]))

    def evidence(self, device: str) -> Iterator[str]:
        """What was seen on the device that makes it slow, the surest first."""
        seen, clock, most = self._throttled(device), self._clock(device), self._most_clock(device)
        if seen:
            yield f"throttled: {', '.join(seen)}"
        if clock and most and clock < LEAST_CLOCK * most:
            yield f"SM clock {clock:.0f} of {most:.0f} MHz"
        told = self.told(device)
        limit, usual = told.get("settings", {}).get("power_limit_w"), told.get("health", {}).get("default_power_limit_w")
        if limit and usual and limit < usual:
            yield f"power limit {limit:g} of {usual:g} W"
        yield from (f"{each.what} {each.found} of {each.expected}" for each in self._broken_links(device))
        if (taken := self._taken()) and (wide := {k: v for k, v in taken.items() if v > TAKEN_CORES}):
            words = {"other processes": "other processes keep {:.1f} cores busy", "the hypervisor": "{:.1f} cores stolen"}
            yield from (words[who].format(cores) for who, cores in wide.items())

    def pairs(self) -> Iterator[AcceptCheck]:
        """The slowest pair of each kind of path against what it carries and what the others do, and each slow pair."""
        capability = capability_of(str(self.identity.get("model", "")))
        for found in pair_maps(curves_of(self.rows)) if self.on_gpu and capability else ():
            pcie = pcie_of(capability)
            for path, pairs in grouped(found.rates, found.paths.get).items():
                peak = Path.parse(path or "").peak_gb_per_s(nvlink_of(capability), pcie)
                middle = statistics.median(found.rates[pair] for pair in pairs)
                ends = [share * peak * 1e9 for share in LINK_SHARE] if peak else [SLOW * middle, middle]
                expected = Quantity(ends[1], "GB/s", max(ends[0], SLOW * middle), ends[1], 0, True)
                by = f"{path or 'the other pairs'} and the median pair"
                slow = [pair for pair in pairs if found.rates[pair] < expected.low]
                for one, other in slow or [min(pairs, key=found.rates.__getitem__)]:
                    rate = Quantity(found.rates[one, other], "GB/s")
                    causes = (*self.evidence(f"cuda:{one}"), *self.evidence(f"cuda:{other}"), *USUAL_CAUSES["collective"])
                    what = "pair" if slow else f"slowest of {len(pairs)} pairs"
                    yield checked(f"cuda:{one}-{other}", what, rate, expected, dict.fromkeys(causes), by)

    def states(self) -> Iterator[AcceptCheck]:
        """Clocks, throttling and memory errors of each GPU; of the host the cores that were left to the run."""
        for device in sorted({self.device(each) for each in self.timed}) if self.on_gpu else ():
            clock, most, seen = self._clock(device), self._most_clock(device), self._throttled(device)
            if clock is None or most is None:
                yield AcceptCheck(device, "SM clock under load", UNMEASURED, why="NVML does not tell it")
            else:
                expected = Quantity(most, "count", LEAST_CLOCK * most, most)
                verdict = LOW if clock < LEAST_CLOCK * most else OK
                yield AcceptCheck(device, "SM clock under load, MHz", verdict, Quantity(clock, "count"), expected)
            severe = [reason for reason in seen or () if reason in DISCARD_REASONS]
            verdict = UNMEASURED if seen is None else BAD if severe else OK
            yield AcceptCheck(device, "throttling", verdict, why=", ".join(seen or ()))
            yield self._memory(device)
        for who, cores in self._taken().items():
            verdict = BAD if cores > TAKEN_CORES else OK
            yield AcceptCheck("host", f"cores taken by {who}", verdict, Quantity(cores), Quantity(0.0, "", 0, TAKEN_CORES))

    def _memory(self, device: str) -> AcceptCheck:
        health = self.told(device).get("health", {})
        counted = {name: health[name] for name in _COUNTED if health.get(name)}
        words = [f"{name.replace('_', ' ')}: {value}" for name, value in counted.items()]
        if health.get("remapping", "none") != "none":
            words.insert(0, f"rows to remap: {health['remapping']}")
        if not {"uncorrected_errors", "remapping"} & health.keys():
            return AcceptCheck(device, "memory errors", UNMEASURED, why="ECC is off or not there")
        bad = health.get("uncorrected_errors") or health.get("remapping", "none") != "none"
        words += ["reset the GPU or return it"] if bad else []
        errors = Quantity(health.get("uncorrected_errors", 0), "count")
        return AcceptCheck(device, "uncorrected memory errors", BAD if bad else OK, errors, why="; ".join(words))

    def links(self) -> Iterator[AcceptCheck]:
        """Each link below what it is made for, and how many are as expected."""
        checks = self._links()
        if not checks:
            return
        for each in checks:
            if each.verdict == BELOW:
                why = f"{each.found}, expected {each.expected}" + (f": {each.why}" if each.why else "")
                yield AcceptCheck(each.part, each.what, BAD, why=why)
        right = Quantity(sum(each.verdict == EXPECTED for each in checks), "count")
        verdict = BAD if any(each.verdict == BELOW for each in checks) else OK
        yield AcceptCheck("node", "links and limits as expected", verdict, right, Quantity(len(checks), "count"))

    def missing(self) -> Iterator[AcceptCheck]:
        """Cases without a result: one that is wrong or crashed is not ok, one that cannot run here not measured."""
        for record in self.timed:
            if record.outcome != "ok":
                verdict = BAD if record.outcome == "failed" else UNMEASURED
                yield AcceptCheck(self.device(record), _name(record.parsed_case()), verdict, why=record.reason)
        if self.on_gpu and self.identity.get("count") == 1:
            yield AcceptCheck("node", "all_reduce and pairs", UNMEASURED, why="there is one GPU")

    def _links(self) -> list[Any]:
        host = host_checks(self.host) if self.host else ()
        return [*host, *(gpu_checks(self.gpus) if self.gpus else ())]

    def _broken_links(self, device: str) -> list[Any]:
        part = f"GPU {device.removeprefix('cuda:')}"
        return [each for each in self._links() if each.verdict == BELOW and each.part == part]

    def _products(self, device: str) -> list[Record]:
        return [each for each in self.timed if each.case["operator"] == "matmul" and self.device(each) == device]

    def _throttled(self, device: str) -> list[str] | None:
        """Reasons seen by NVML during products; None where it was not asked."""
        told = [each.quality["gpu"] for each in self._products(device) if "gpu" in each.quality]
        seen = {reason for each in told for reason in each["throttle_reasons_seen"]}
        return sorted(seen, key=lambda reason: reason not in DISCARD_REASONS) if told else None

    def _clock(self, device: str) -> float | None:
        """The SM clock of products, MHz: by the device's own counters, else as NVML read it right after."""
        found = []
        for each in self._products(device):
            after = each.quality.get("gpu", {}).get("after", {})
            found += [each.metrics["sm_clock"].value / 1e6] if "sm_clock" in each.metrics else []
            found += [after["sm_clock_mhz"]] if "sm_clock" not in each.metrics and "sm_clock_mhz" in after else []
        return min(found, default=None)

    def _most_clock(self, device: str) -> float | None:
        most = self.told(device).get("settings", {}).get("maximum_sm_clock_mhz")
        return float(most) if most else None

    def _taken(self) -> dict[str, float]:
        """Cores that others had while cases were timed, over all samples, for the kernel counts in ticks."""
        known = [each.quality for each in self.timed if each.outcome == "ok" and "cpu_busy_s" in each.quality]
        elapsed_s = sum(each["elapsed_s"] for each in known)
        if not elapsed_s:
            return {}
        others = sum(each["cpu_busy_s"] - each["process_cpu_s"] for each in known)
        stolen = sum(each["cpu_steal_s"] for each in known)
        return {"other processes": max(0.0, others / elapsed_s), "the hypervisor": stolen / elapsed_s}

    def _by_law(self, case: Case) -> Expected | None:
        """By the laws, or the peak of the slot; None for a GPU that is not in the catalogue."""
        p, gpu = case.parameters, str(self.identity.get("model", ""))
        try:
            if case.operator == "matmul":
                return _widened(gemm_time(gpu, p.m, p.n, p.k, "bf16", p.layout, case.mode), "the law of products")
            if case.operator == "layer_pass":
                return _widened(memory_bound_time(gpu, _amount(case)[0]), "the law of memory")
            if case.operator == "collective":
                return _widened(collective_time(gpu, p.op, p.message_bytes, p.ranks), "the law of collectives")
        except UserError:
            return None
        peak = pcie_of(capability_of(gpu))
        return _between(p.size_bytes, *(share * peak.gb_per_s * 1e9 for share in LINK_SHARE), peak.name)

    def _by_peak(self, case: Case) -> Expected | None:
        """By what the CPU's vectors and clock allow; between its ends lies every healthy one, and more."""
        mhz = [each.quality["before"]["cpu_mhz"]["high"] for each in self.timed if "cpu_mhz" in each.quality.get("before", {})]
        if case.operator == "collective":
            return _between(_amount(case)[0], *GLOO_RATE, "what gloo reaches on any machine")
        if not mhz or self.host is None:
            return None
        hz, workers = max(mhz) * 1e6, case.parameters.schedule.workers if case.operator == "matmul" else 1
        if case.operator == "transfer":
            return _between(_amount(case)[0], *(each * hz for each in CPU_BYTES_A_CYCLE), "bytes a cycle of any CPU")
        # Two units that multiply and add; of hardware threads two share them.
        cores = max(1, min(workers, self.host["cores"] or workers))
        peak = 4 * self.host.get("vector_bits", 256) / 32 * hz * cores
        return _between(_amount(case)[0], *(share * peak for share in CPU_SHARE), "the peak of its vectors and clock")


_COUNTED = (
    *("corrected", "uncorrected", "uncorrected_ever", "rows_remapped_corrected", "rows_remapped_uncorrected"),
    *("pages_retired_corrected", "pages_retired_uncorrected"),
)


def _amount(case: Case, record: Record | None = None) -> tuple[float, str]:
    """What a launch is counted in, and the unit of its rate: FLOP, payload, or bytes of the bus."""
    p = case.parameters
    if case.operator == "matmul":
        return 2.0 * p.m * p.n * p.k, "TFLOP/s" if case.implementation == "cublas" else "GFLOP/s"
    if case.operator == "collective":
        return float(p.message_bytes * bus_factor(p.operation.counted_as, p.ranks)), "GB/s"
    return float(p.size_bytes if case.operator == "transfer" else find_workload("layer_pass").work(p).bytes), "GB/s"


def _name(case: Case) -> str:
    """What a person calls the check."""
    p = case.parameters
    if case.operator == "matmul":
        threads = f", {p.schedule.workers} cores" if case.implementation == "torch" else ""
        return f"{p.dtype} products, {case.mode}{threads.replace('1 cores', '1 core') if threads == ', 1 cores' else threads}"
    if case.operator == "collective":
        return f"{p.op} of {p.ranks} ranks" + (f", {p.pattern}" if p.pattern else "")
    if case.operator == "transfer" and case.implementation == "torch":
        return f"copy in memory, {p.workers} core{'s' if p.workers > 1 else ''}"
    names = {"host_to_device": "host to GPU", "device_to_host": "GPU to host", "system": f"{case.operator}"}
    return names.get(case.implementation, "copy in its memory")


def _widened(price: Explained, by: str) -> Expected:
    """A price with its interval made wider; where none is known its error stands for it."""
    seconds = float(price.seconds)
    known = price.low is not None and price.high is not None
    error = 1 + (price.error_percent or 20.0) / 100 * 2
    low, high = (float(price.low), float(price.high)) if known else (seconds / error, seconds * error)
    marked = f"{by}, beyond what it was fitted to" if np.any(price.extrapolated) else by
    return Expected(seconds, seconds * (low / seconds) ** WIDER, seconds * (high / seconds) ** WIDER, marked)


def _between(amount: float, low: float, high: float, by: str) -> Expected:
    """Between two rates; in the middle of their logarithms."""
    return Expected(amount / (low * high) ** 0.5, amount / high, amount / low, by)


CHECKS = (
    Column("part", priority=2),
    Column("check", "what", priority=2),
    Column("found", priority=2),
    Column("expected"),
    Column("unit", lambda each: each.unit),
    Column("off", unit="+%", priority=2),
    Column("verdict", priority=2),
    Column("why", priority=0),
    Column("expected by", "by", priority=0),
)


def analyse(
    rows: Rows, expect: Expect | None = None, before: Mapping[tuple[str, str], Quantity] | None = None
) -> Findings:
    """How many checks are ok, a sentence for each that is not, and a line for each."""
    checks = checks_of(rows, expect, before)
    return findings(_told(checks) if checks else None, table("Checks of this node", CHECKS, checks))


def _told(checks: Sequence[AcceptCheck]) -> Iterator[Remark]:
    bad, unmeasured = [each for each in checks if each.is_bad], [each for each in checks if each.verdict == UNMEASURED]
    yield remark(
        "{ok} of {checks} checks are ok, {bad} are not, {unmeasured} were not measured",
        kind="caution" if bad else "",
        ok=sum(each.verdict == OK for each in checks),
        checks=len(checks),
        bad=len(bad),
        unmeasured=len(unmeasured),
    )
    for each in (*bad, *unmeasured):
        words = "{part}: {what}: {verdict}"
        if each.verdict == LOW and each.off is not None:
            words = "{part}: {what} is {short} low: {found}, expected {expected}"
        short = Quantity(-(each.off or 0.0), "%")
        values = {name: getattr(each, name) for name in ("part", "what", "verdict", "found", "expected", "why")}
        words += " ({why})" if each.why else ""
        yield remark(words, kind="caution" if each.is_bad else "", short=short, **values)


PROBE = Probe(
    name="accept",
    question="Is every part of this node as fast as its kind should be?",
    topic="the machine",
    title="Acceptance of a node",
    axes=axes,
    sweep=sweep,
    analyse=analyse,
    group=lambda case: f"accept {case.operator} {case.implementation}",
    is_timed=False,
    has_items=False,
)
