"""Is this node as fast as its parts should be? Every device in turn, one check a line: `pyperf-suite accept`.

Expected is what `laws` predict for a GPU, without them the peak of a CPU or of a slot, in a wide interval.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from pyperf_suite.extensions import Expect, ExpectedTime
from pyperf_suite.findings.axes import AxisTable, Sizes, by, every_size, multiprocessors, one_and_all_cores, sizes
from pyperf_suite.findings.data import Findings, findings, remark
from pyperf_suite.findings.probe import Probe
from pyperf_suite.findings.rows import Rows, grouped, rows_of
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.catalogue import capability_of
from pyperf_suite.hardware.devices import gpus
from pyperf_suite.hardware.kernel_files import parse_cpu_list
from pyperf_suite.hardware.links import pcie_of
from pyperf_suite.hardware.topology import Path
from pyperf_suite.laws.tiling import Schedule
from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.measure.telemetry import DISCARD_REASONS
from pyperf_suite.node.check import CAUTION, FAILED, OK, UNKNOWN, Check, check_table, named, sentences
from pyperf_suite.node.doctor.gpu import power_check
from pyperf_suite.node.probes.topology import gpu_checks, host_checks
from pyperf_suite.probes.collectives import tournament
from pyperf_suite.probes.collectives.curves import curves_of
from pyperf_suite.probes.collectives.ranks import SLOW_SHARE, pair_maps
from pyperf_suite.probes.transfer import OVER_BUS
from pyperf_suite.record.case import MODES, Case
from pyperf_suite.record.quantity import VAGUE_SPAN, Quantity
from pyperf_suite.record.record import Record
from pyperf_suite.workloads import find_workload
from pyperf_suite.workloads.collective import CollectiveParameters
from pyperf_suite.workloads.exact import PARTS, TopologyParameters
from pyperf_suite.workloads.matmul import MatmulParameters
from pyperf_suite.workloads.training.layers import LayerPassParameters
from pyperf_suite.workloads.training.transfer import TransferParameters

CORES_OF_SMALL_PRODUCTS = 8
# Copies and NCCL reach this share of a healthy link's peak at least; at half its rate they reach half of that.
LINK_SHARE = (0.6, 1.0)
# Ranges of a CPU's products by its vectors and clock, of copies, and of gloo between two ranks: every model, with room.
CPU_SHARE, CPU_BYTES_A_CYCLE, GLOO_GB_PER_S = (0.25, 1.1), (1.0, 32.0), (0.3, 50.0)
# Nine of ten measurements lie in a law's interval, of a healthy part next to all in one so much wider (logarithms),
# and none closer than by that factor: two healthy parts differ, and so do two runs.
WIDER_BY, MIN_FACTOR = 1.5, 1.1
# Least rates of a CPU's products: after two seconds of work over a burst, and a core's part of all over one in boost.
LEAST_SUSTAINED, LEAST_OF_ALL = 0.85, 0.5
# The power cap takes some of the clock, and a law knows it; this much is not the cap's.
LEAST_CLOCK = 0.6
# Cores that others may have meanwhile: this number, or this share of many.
MOST_TAKEN, SHARE_TAKEN = 0.15, 0.02
CAUSES: Mapping[str, str] = {
    "matmul": "power limit, cooling or clocks; another process",
    "layer_pass": "memory clock; remapped rows; another process",
    "transfer": "link, riser or switch; process on the far NUMA node; IOMMU or ACS",
    "collective": "a link or switch port is down; P2P switched off or NCCL_* set; one slow GPU",
    "cpu": "another process or virtual machine; clock, cooling or governor; memory channels not filled",
}
# Fields of a GPU's health that count errors of memory.
COUNTED = ("corrected", "uncorrected", "rows_remapped", "pages_retired")


@dataclass(frozen=True)
class AcceptAxes(AxisTable):
    """Side of square products on `workers` cores or SMs, bytes of a copy and an all_reduce, and its ranks."""

    side: tuple[int, ...] = by(
        lambda _: (1024 if cpu.detect().usable_cores <= CORES_OF_SMALL_PRODUCTS else 2048,), cuda=(8192,)
    )
    workers: tuple[int, ...] = by(one_and_all_cores, cuda=multiprocessors)
    copy_size: tuple[Sizes, ...] = by(sizes("64MiB"), cuda=sizes("256MiB"))
    reduce_size: tuple[Sizes, ...] = by(sizes("4MiB"), cuda=sizes("256MiB"))
    ranks: tuple[int, ...] = by((2,), cuda=lambda _: (len(gpus()),) if len(gpus()) > 1 else ())
    kind: tuple[str, ...] = by(("cpu",), cuda=("cuda",))


def sweep(axes: AcceptAxes) -> Iterator[Case]:
    """Products in a burst and on end, copies, an all_reduce and every pair; what is only read comes last."""
    on_gpu = "cuda" in axes.kind
    library, dtype, layout = ("cublas", "bfloat16", "TN") if on_gpu else ("torch", "float32", "NN")
    for side, workers in product(axes.side, axes.workers):
        p = MatmulParameters(side, side, side, Schedule("library", workers), dtype=dtype, layout=layout)
        modes = MODES if workers == max(axes.workers) else MODES[:1]
        yield from (Case("matmul", p, library, mode=mode) for mode in modes)
    for side in axes.side if on_gpu else ():
        yield Case("layer_pass", LayerPassParameters("copy", seq=side, hidden=side, dtype=dtype), "torch")
    ways = OVER_BUS if on_gpu else ("torch",)
    for size, way, workers in product(every_size(axes.copy_size), ways, (1,) if on_gpu else axes.workers):
        yield Case("transfer", TransferParameters(size, workers, pinned=on_gpu), way)
    for ranks, size in product(axes.ranks, every_size(axes.reduce_size)):
        how = "nccl" if on_gpu else "gloo"
        yield Case("collective", CollectiveParameters("all_reduce", size, ranks, in_place=True), how)
        for pairs in tournament(ranks) if on_gpu else ():
            pattern = ",".join(f"{one}-{other}" for one, other in pairs)
            yield Case("collective", CollectiveParameters("ping_pong", size, ranks, pattern=pattern), how)
    yield from (Case("topology", TopologyParameters(part), "system") for part in (PARTS if on_gpu else PARTS[:1]))


RateKey = tuple[str, str]


Laws = Callable[[Mapping[str, Any]], Expect]
"""Returns what the laws expect on the machine of that identity."""


def checks_of(rows: Rows, laws: Laws | None = None, before: Mapping[RateKey, Quantity] | None = None) -> list[Check]:
    """Every check of a run. `before`, earlier rates by part and check, goes before laws."""
    node = _Node(rows, laws, before or {})
    states = [*node.states(), *node.links()]
    return [*node.rates(states), *states, *node.missing()] if rows.records else []


class _Node:
    """The records of one run."""

    def __init__(self, rows: Rows, laws: Laws | None, before: Mapping[RateKey, Quantity]) -> None:
        self.rows, self.before = rows, before
        self.timed = [each for each in rows.records if each.kind == "timing"]
        self.measured = [each for each in self.timed if each.outcome == "ok"]
        self.identity = next((each.identity for each in rows.records), {})
        self.on_gpu = self.identity.get("kind") == "cuda"
        self.law = laws(self.identity) if laws and self.on_gpu else None
        self.capability = capability_of(str(self.identity.get("model"))) if self.on_gpu else None
        self.details = {
            row.reading.kernel.get("path"): row.reading.details for row in rows if row.case.operator == "topology"
        }

    def device(self, record: Record) -> str:
        everybodys = self.on_gpu and record.case["operator"] == "collective"
        return "node" if everybodys else str(record.state.get("device", "cuda:0" if self.on_gpu else "cpu"))

    def rates(self, states: Iterable[Check]) -> Iterator[Check]:
        """Yield a check of each case on each device, by the median of trials; a device's fault explains it first."""
        wrong = [(each.part, _in_words(each)) for each in states if each.needs_attention]

        def check(
            part: str, name: str, kind: str, rate: Quantity, expected: Quantity | None, by: str, *first: str
        ) -> Check:
            if expected is not None and rate.value < expected.low:
                seen = [words for where, words in wrong if where in (part, "host") or part == "node"]
                return Check(part, name, rate, expected, CAUTION, "; ".join((*first, *seen, CAUSES[kind])), source=by)
            why = ""
            if expected is not None and expected.span > VAGUE_SPAN:
                why = f"cannot judge: the expected range spans {expected.span:.2g} ×"
            return Check(part, name, rate, expected, UNKNOWN if expected is None or why else OK, why, source=by)

        mine = [each for each in self.measured if each.case["operator"] != "topology"]
        single = [each for each in mine if not each.case["parameters"].get("pattern")]
        for (part, _), trials in grouped(single, lambda each: (self.device(each), each.case_id)).items():
            # As taken: a node is judged at the clocks that it reaches.
            case, seconds = trials[0].parsed_case(), sorted(trial.metrics["time"].value for trial in trials)
            (amount, unit), label = _amount(case), _name(case)
            # A single trial has no range.
            ends = (amount / seconds[-1], amount / seconds[0]) if len(seconds) > 1 else (math.nan, math.nan)
            measured = Quantity(amount / statistics.median(seconds), unit, *ends, len(seconds))
            known = self.expected(case)
            expected, by = None, ""
            if known:
                ends, by = (amount / known.high, amount / known.low), known.source
                expected = Quantity(amount / known.seconds, unit, *ends, predicted=True)
            if (part, label) in self.before:
                expected, by = self.before[part, label], "the baseline"
            yield check(part, label, case.operator if self.on_gpu else "cpu", measured, expected, by)
        for label, ratio, usual in () if self.on_gpu else self._ratios():
            yield check("cpu", label, "cpu", ratio, usual, "every CPU")
        for label, slowest, usual, slow in self._pairs():
            yield check("node", label, "collective", slowest, usual, "the other pairs and the path's peak", slow)

    def _ratios(self) -> Iterator[tuple[str, Quantity, Quantity]]:
        """All cores relative to one, work on end relative to a burst."""
        rows = sorted(self.rows.where(operator="matmul"), key=lambda row: (row.p.schedule.workers, row.case.mode))
        for row in rows[1:]:
            base, threads = rows[0], row.p.schedule.workers
            # Hardware threads share the units of a core.
            cores = float(min(threads, self.details.get("host", {}).get("cores") or threads))
            what, usual, least = f"{threads} cores over 1 core", cores, LEAST_OF_ALL * cores
            if row.case.mode == "sustained":
                base, what, usual, least = row.like(mode="burst") or row, "sustained over burst", 1.0, LEAST_SUSTAINED
            yield what, Quantity(base.seconds / row.seconds, "x"), Quantity(usual, "x", least, math.inf)

    def _pairs(self) -> Iterator[tuple[str, Quantity, Quantity, str]]:
        """The slowest pair of each kind of path, and which are slow by what it carries or what others do."""
        ranked = rows_of([each for each in self.timed if each.case["operator"] == "collective"])
        for found in pair_maps(curves_of(ranked)) if self.capability else ():
            for path, pairs in grouped(found.rates, found.paths.get).items():
                peak = self.capability and Path.parse(path or "").peak_gb_per_s(self.capability)
                rates = sorted((found.rates[pair], pair) for pair in pairs)
                middle = statistics.median(rate for rate, _ in rates)
                least = max(SLOW_SHARE * middle, LINK_SHARE[0] * (peak or 0.0) * 1e9)
                slow = ", ".join(f"{one}-{other}" for rate, (one, other) in rates if rate < least)
                usual = Quantity(max(middle, least), "GB/s", least, math.inf)
                slowest = Quantity(rates[0][0], "GB/s")
                yield f"slowest pair by {path or 'any path'}", slowest, usual, f"pairs {slow}"

    def states(self) -> Iterator[Check]:
        """Clock, throttling and memory errors of each GPU; the cores that others had."""
        measured = {self.device(each) for each in self.timed}
        for gpu in self.details.get("gpus", {}).get("gpus", ()):
            part, health = f"cuda:{gpu['index']}", gpu.get("health", {})
            if part not in measured:
                continue
            mine = [each for each in self.measured if self.device(each) == part and each.case["operator"] == "matmul"]
            message = [each.quality["gpu"] for each in mine if "gpu" in each.quality]
            # By the GPU's own counters while it worked, else as NVML has it right after.
            clocks = [round(each.metrics["sm_clock"].value / 1e6) for each in mine if "sm_clock" in each.metrics]
            clocks = clocks or [each["after"]["sm_clock_mhz"] for each in message if "sm_clock_mhz" in each["after"]]
            most = gpu.get("settings", {}).get("maximum_sm_clock_mhz")
            if clocks and most:
                verdict, limits = CAUTION if min(clocks) < LEAST_CLOCK * most else OK, (LEAST_CLOCK * most, float(most))
                why = f"{min(clocks)} of {most} MHz" * (verdict == CAUTION)
                clock, expected = Quantity(min(clocks)), Quantity(most, "", *limits)
                yield Check(part, "SM clock", clock, expected, verdict, why)
            seen = sorted({reason for each in message for reason in each["throttle_reasons_seen"]})
            verdict = FAILED if set(seen) & set(DISCARD_REASONS) else OK if message else UNKNOWN
            yield Check(part, "throttling", verdict=verdict, why=", ".join(seen) if message else "NVML does not answer")
            power = power_check({**gpu.get("settings", {}), **health}, str(gpu["index"]))
            if power.needs_attention:
                yield named(power, part, "power limit")
            if {"uncorrected_errors", "remapping"}.isdisjoint(health):
                yield Check(part, "memory errors", verdict=UNKNOWN, why="ECC is off or not reported")
                continue
            errors = {name: count for name, count in health.items() if name.startswith(COUNTED) and count}
            errors |= {"remapping": health["remapping"]} if health.get("remapping", "none") != "none" else {}
            verdict = FAILED if health.get("uncorrected_errors") or "remapping" in errors else OK
            words = (f"{name.replace('_', ' ')}: {value}" for name, value in errors.items())
            yield Check(part, "memory errors", verdict=verdict, why=", ".join(words))
        known = [each.quality for each in self.measured if "cpu_busy_s" in each.quality]
        elapsed_s = sum(each["elapsed_s"] for each in known)
        took_s = {
            "other processes": sum(each["cpu_busy_s"] - each["process_cpu_s"] for each in known),
            "the hypervisor": sum(each["cpu_steal_s"] for each in known),
        }
        # Over all samples together, for the kernel counts in ticks.
        threads = len(parse_cpu_list(self.details.get("host", {}).get("online", "")))
        for who, seconds in took_s.items() if elapsed_s else ():
            cores = max(0.0, seconds / elapsed_s)
            verdict = FAILED if cores > max(MOST_TAKEN, SHARE_TAKEN * threads) else OK
            yield Check("host", f"cores that {who} took", Quantity(cores), verdict=verdict)

    def links(self) -> Iterator[Check]:
        """Each link below what it is made for; where there is none, that it is so."""
        host, found = self.details.get("host"), self.details.get("gpus")
        checks = [*(host_checks(host) if host else ()), *(gpu_checks(found) if found else ())]
        wrong = [each for each in checks if each.verdict == FAILED]
        yield from (named(each, each.part.replace("GPU ", "cuda:"), each.what) for each in wrong)
        if checks and not wrong:
            yield Check("node", "links", Quantity(len(checks), "count"))

    def missing(self) -> Iterator[Check]:
        """Cases without a result: wrong or crashed is not ok, what cannot run here is not measured."""
        for each in self.timed:
            if each.outcome != "ok":
                verdict = FAILED if each.outcome == "failed" else UNKNOWN
                yield Check(self.device(each), _name(each.parsed_case()), verdict=verdict, why=each.reason)
        if self.identity.get("count") == 1:
            yield Check("node", "all_reduce and pairs", verdict=UNKNOWN, why="there is one GPU")

    def expected(self, case: Case) -> ExpectedTime | None:
        """By a law or else a peak, with an interval that every healthy part keeps within."""
        known = self.law(case) if self.law else None
        if known is None:
            return self._by_peak(case)
        less, more = ((end / known.seconds) ** WIDER_BY for end in (known.low, known.high))
        return known._replace(low=known.seconds * min(less, 1 / MIN_FACTOR), high=known.seconds * max(more, MIN_FACTOR))

    def _by_peak(self, case: Case) -> ExpectedTime | None:
        """By the slot's peak, or by what vectors and clock allow: every healthy part lies between its ends."""
        if self.on_gpu:
            if case.operator != "transfer":
                return None
            peak = pcie_of(self.capability)
            return _between(case.parameters.size_bytes, peak.gb_per_s * 1e9, LINK_SHARE, peak.name)
        clocks = [each.quality.get("before", {}).get("cpu_mhz", {}).get("high", 0.0) for each in self.measured]
        amount, hz, by = _amount(case)[0], 1e6 * max(clocks, default=0.0), "the peak of any CPU"
        if case.operator == "collective":
            return _between(amount, 1e9, GLOO_GB_PER_S, by)
        if not hz:
            return None
        if case.operator == "transfer":
            return _between(amount, hz, CPU_BYTES_A_CYCLE, by)
        # Two units that multiply and add, of 32 bits; hardware threads share those of a core.
        host = self.details.get("host", {})
        workers = case.parameters.schedule.workers
        cores = min(workers, host.get("cores") or workers)
        peak = 4 * host.get("vector_bits", 256) / 32 * hz * cores
        return _between(amount, peak, CPU_SHARE, "the peak of its vectors and clock")


def _in_words(check: Check) -> str:
    """Describe a device's fault, as the cause of a low rate."""
    if isinstance(check.found, Quantity):
        return f"{check.what} {check.why or f'{check.found.value:.1f}'}"
    expected = "" if check.expected is None else f"expected {check.expected}"
    return f"{check.what} {', '.join(filter(None, (str(check.found or ''), expected, check.why)))}"


def _between(amount: float, rate: float, shares: tuple[float, float], source: str) -> ExpectedTime:
    """Between two shares of a rate; in the middle of their logarithms."""
    low, high = (rate * share for share in shares)
    return ExpectedTime(amount / math.sqrt(low * high), amount / high, amount / low, source)


def _amount(case: Case) -> tuple[float, str]:
    """Return a launch's amount and the unit of its rate: FLOP, payload, or bytes of the bus."""
    p = case.parameters
    if case.operator == "matmul":
        return 2.0 * p.m * p.n * p.k, "TFLOP/s" if case.implementation == "cublas" else "GFLOP/s"
    if case.operator == "collective":
        return float(p.message_bytes * bus_factor(p.operation.counted_as, p.ranks)), "GB/s"
    return float(p.size_bytes if case.operator == "transfer" else find_workload("layer_pass").work(p).bytes), "GB/s"


def _name(case: Case) -> str:
    """Return a case's name for people: `float32 products, burst, 2 cores`."""
    p, way = case.parameters, case.implementation
    workers = getattr(getattr(p, "schedule", p), "workers", 0)
    cores = f", {workers} core{'s' * (workers > 1)}" if way == "torch" and case.operator != "layer_pass" else ""
    names = {
        "matmul": lambda: f"{p.dtype} products, {case.mode}{cores}",
        "collective": lambda: f"{p.op} of {p.ranks} ranks" + (f", {p.pattern}" if p.pattern else ""),
        "transfer": lambda: (
            {"torch": "copy in memory"}.get(way, way.replace("_", " ").replace("device", "GPU")) + cores
        ),
        "layer_pass": lambda: "copy in its memory",
    }
    return names.get(case.operator, lambda: case.operator)()


def analyse(rows: Rows, laws: Laws | None = None, before: Mapping[RateKey, Quantity] | None = None) -> Findings:
    """Say if the node is accepted, with a sentence for each check that is not ok and a line for each."""
    checks = checks_of(rows, laws, before)
    good, unsure = (sum(each.verdict == verdict for each in checks) for verdict in (OK, UNKNOWN))
    bad = len(checks) - good - unsure
    message = (
        f"{'Not accepted' if bad else 'Accepted'}: {{ok}} of {{checks}} checks are ok, {{bad}} not, {{unknown}} unknown"
    )
    counts = remark(message, ok=good, checks=len(checks), bad=bad, unknown=unsure)
    return findings(counts if checks else None, sentences(checks), check_table("Checks", checks))


PROBE = Probe(
    name="accept",
    question="Is every part of this node as fast as its kind should be?",
    topic="the machine",
    title="Acceptance of a node",
    axes=AcceptAxes.of,
    sweep=sweep,
    analyse=analyse,
    group=lambda case: f"accept {case.operator} {case.implementation}",
    is_timed=False,
    has_items=False,
)
