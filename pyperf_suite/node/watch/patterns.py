"""Find what a job waits for by its samples: each pattern with its evidence, and commands that would tell more.

Pure functions of samples. A pattern is named by means over the samples after the start, so that a phase of some seconds
names none.
"""

from __future__ import annotations

import itertools
import operator
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyperf_suite.findings.data import Remark, remark
from pyperf_suite.measure.telemetry import DISCARD_REASONS
from pyperf_suite.node.watch.samples import WAITS, Gpu, RankSample, Sample

Name = Literal[
    "no CPU",
    "data",
    "disk",
    "timer",
    "network",
    "straggler",
    "cpu",
    "idle SMs",
    "throttled",
    "memory limit",
    "memory leak",
]

LEAST_SAMPLES = 4
# The start of a job: until its youngest process began, at most this share of what was watched and so long.
START_SHARE, LONGEST_START_S = 0.5, 60.0
WAITING = 0.2  # of its time, before it is worth a word
LOADERS_BUSY = 0.85  # from here on loaders have no time left
STRAGGLES_BY = 0.25  # more of its time busy than the other ranks
SLOWER_STEPS = 1.1
MORE_POWER, LOWER_CLOCK = 1.15, 0.93
BUSY_THREAD, ONE_THREAD = 0.85, 1.25
GPU_IDLE, GPU_BUSY = 0.15, 0.9
IDLE_SMS = 0.5  # with less the GPU is likely used badly, from 0.8 on it may be used well: DCGM's guide on SM Activity
THROTTLED = 0.1  # share of samples
MEMORY_LEFT = 0.05
# A leak grows in each of PARTS parts of the time, the last at least half as fast as all, by at least this in total.
PARTS, LEAST_GROWTH_BYTES, LEAST_GROWTH = 5, 64 << 20, 0.1
FURTHEST_END_S = 30 * 86_400.0


@dataclass(frozen=True)
class Pattern:
    """One reason for waiting, on which rank (None: all), the evidence, and the command that would tell more."""

    name: Name
    rank: int | None
    evidence: Remark
    advice: str


def judge(samples: Sequence[Sample], step_s: Mapping[int, float] | None = None) -> list[Pattern]:
    """The patterns in these samples and in the ranks' median steps, the gravest first; none of too few samples."""
    steady = after_start(samples)
    if len(steady) < LEAST_SAMPLES:
        return []
    job = _Job(steady)
    found = [*_throttled(job), *_lacks_cpus(job), *_waits_for_data(job), *_sleeps(job)]
    starved = {each.rank for each in found if each.name in ("data", "disk", "no CPU", "timer")}
    found += _straggler(job, step_s or {}, starved)
    if not starved and not any(each.name == "straggler" for each in found):
        found += [*_waits_for_network(job), *_waits_for_cpu(job), *_idle_sms(job)]
    return [*found, *_near_the_limit(job), *_leaks(job)]


def after_start(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of all ranks, without those of the job's start and the last, in which it may have ended."""
    if not samples:
        return []
    first = samples[0].at_s - samples[0].seconds
    watched_s = samples[-1].at_s - first
    # Loaders that begin anew with each epoch do not make it a start again.
    began_s = max((each.started_s for each in samples[: len(samples) // 2 + 1]), default=0.0)
    start_s = first + min(max(began_s - first + 1.0, 0.2 * watched_s), START_SHARE * watched_s, LONGEST_START_S)
    ranks = max(len(each.ranks) for each in samples)
    return [each for each in samples[:-1] if each.at_s - each.seconds >= start_s and len(each.ranks) == ranks]


def figures(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """A row of means for each rank, as `RankSample` and NVML name them; what is not known is absent."""
    job = _Job(samples, min_samples=1)
    shown = ("cores", "main_share", "queue_share", "loaders", "loader_busy", "read_bytes_per_s", "write_bytes_per_s")
    of_gpus = ["utilization", "sm_activity", "sm_occupancy", "tensor_activity", "dram_activity", "power_w"]
    of_gpus += ["sm_clock_mhz", "memory_used_bytes", "pcie_bytes_per_s", "nvlink_bytes_per_s"]
    return [
        {
            "rank": rank,
            "pid": held[-1].pid,
            **{name: job.mean(rank, operator.attrgetter(name)) for name in shown},
            "waits": {kind: share for kind in WAITS if (share := job.wait(rank, kind))},
            "memory_bytes": max(each.memory_bytes for each in held),
            **{name: value for name in of_gpus if (value := job.gpu(rank, name)) is not None},
        }
        for rank, held in sorted(job.ranks.items())
    ]


class _Job:
    """Means of the samples by rank and GPU."""

    def __init__(self, samples: Sequence[Sample], min_samples: int = LEAST_SAMPLES) -> None:
        self.samples = samples
        self.ranks: dict[int, list[RankSample]] = {}
        self.gpus: dict[str, list[Gpu]] = {}
        for sample in samples:
            for rank in sample.ranks:
                self.ranks.setdefault(rank.rank, []).append(rank)
            for gpu in sample.gpus:
                self.gpus.setdefault(gpu["uuid"], []).append(gpu)
        self.ranks = {rank: held for rank, held in self.ranks.items() if len(held) >= min_samples}

    def mean(self, rank: int, figure: Callable[[RankSample], float]) -> float:
        return statistics.fmean(map(figure, self.ranks[rank]))

    def wait(self, rank: int, *kinds: str) -> float:
        looked_at = [each.waits for each in self.ranks[rank] if each.waits]
        return statistics.fmean(sum(waits.get(kind, 0.0) for kind in kinds) for waits in looked_at or [{}])

    def gpu(self, rank: int, name: str) -> float | None:
        """The mean of a figure over the GPUs of a rank; None where none reports it."""
        known = [each[name] for gpu in self.gpus.values() for each in gpu if each["rank"] == rank and name in each]
        return statistics.fmean(known) if known else None

    def machine(self, figure: Callable[[Sample], float]) -> float:
        return statistics.fmean(map(figure, self.samples))


def _throttled(job: _Job) -> Iterator[Pattern]:
    for gpus in job.gpus.values():
        reasons = [set(each.get("throttle_reasons", ())) for each in gpus]
        share = statistics.fmean(bool(each & {*DISCARD_REASONS}) for each in reasons)
        capped = statistics.fmean("power cap" in each for each in reasons)
        rank, last = gpus[-1]["rank"], gpus[-1]
        limit, usual = last.get("power_limit_w"), last.get("default_power_limit_w")
        clock = statistics.fmean(each.get("sm_clock_mhz", 0.0) for each in gpus)
        message = f"SM clock {clock:.0f} of {last.get('maximum_sm_clock_mhz') or 0} MHz"
        message += f", {last.get('temperature_celsius', 'unknown')} °C, {last.get('power_w') or 0:.0f} W"
        if share >= THROTTLED:
            reason = statistics.mode(each for held in reasons for each in held & {*DISCARD_REASONS})
            message = "The GPU of rank {rank} was throttled ({reason}) in {share:%} of samples: " + message
            evidence = remark(message, rank=rank, reason=reason, share=share)
            yield Pattern("throttled", rank, evidence, "pyperf-suite doctor; look at cooling and power supply")
        elif limit and usual and limit < 0.98 * usual and capped >= 0.5:
            message = (
                f"The GPU of rank {{rank}} ran at its power limit, {limit:.0f} of the usual {usual:.0f} W: {message}"
            )
            yield Pattern("throttled", rank, remark(message, rank=rank), "pyperf-suite doctor; nvidia-smi -pl sets it")
    quota = job.machine(lambda each: each.throttled_share)
    if quota >= THROTTLED:
        message = "A CPU quota kept the job's processes from running in {share:%} of the time"
        yield Pattern("throttled", None, remark(message, share=quota), "raise the container's CPU limit")


def _lacks_cpus(job: _Job) -> Iterator[Pattern]:
    """Ranks that are ready to run for much of the time while others have the CPUs."""
    busiest = [each.busiest_other for each in job.samples if each.busiest_other]
    for rank in job.ranks:
        queued = job.mean(rank, lambda each: each.queue_share)
        if queued < WAITING:
            continue
        who = f", the most {statistics.mode(busiest)}" if busiest else ""
        message = f"Rank {{rank}} is ready to run and has no CPU in {{queued:%}} of its time: others have it{who}"
        more = "stop them, or give the job CPUs of its own (taskset, a container's CPU limit)"
        yield Pattern("no CPU", rank, remark(message, rank=rank, queued=queued), f"{more}; pyperf-suite doctor")


def _sleeps(job: _Job) -> Iterator[Pattern]:
    for rank in job.ranks:
        slept = job.wait(rank, "timer")
        if slept >= WAITING and job.mean(rank, lambda each: each.occupied) <= 1 - WAITING:
            message = "Rank {rank} sleeps until a timer ends in {slept:%} of its time"
            more = "look for time.sleep and for polling with a pause in the loop of steps"
            yield Pattern("timer", rank, remark(message, rank=rank, slept=slept), more)


def _waits_for_data(job: _Job) -> Iterator[Pattern]:
    for rank in job.ranks:
        idle, utilization = 1 - job.mean(rank, lambda each: each.occupied), job.gpu(rank, "utilization")
        disk, loaders = job.wait(rank, "disk"), round(job.mean(rank, lambda each: each.loaders))
        busy = job.mean(rank, lambda each: each.loader_busy)
        figures: dict[str, Any] = {"rank": rank, "read": _rate(job.mean(rank, lambda each: each.read_bytes_per_s))}
        if loaders:
            # With pinned memory a thread of the trainer reads the pipe and the main thread waits for that thread.
            asks = job.wait(rank, "pipe")
            known = asks + job.wait(rank, "thread") if any(each.waits for each in job.ranks[rank]) else 1.0
            waits = min(idle, 1 - utilization if utilization is not None else known)
            # A process that only waits for its children feeds none of them: it is no trainer.
            works = utilization is not None or job.mean(rank, lambda each: each.cores) >= 0.005
            if works and waits >= WAITING and (busy >= LOADERS_BUSY or asks >= 1.5 * WAITING):
                stored = job.mean(rank, lambda each: each.loader_disk)
                message = (
                    "Rank {rank} waits for data in {waits:%} of its time; its {loaders} loaders are busy in {busy:%}"
                )
                message += ", {stored:%} waiting for the disk ({read})" if stored >= WAITING else " ({read} read)"
                evidence = remark(message, waits=waits, loaders=loaders, busy=busy, stored=stored, **figures)
                more = "more or faster loaders: pyperf-suite run input_pipeline"
                yield Pattern("data", rank, evidence, more if busy >= LOADERS_BUSY else f"{more} transfer")
                continue
        if disk >= WAITING:
            written = _rate(job.mean(rank, lambda each: each.write_bytes_per_s))
            message = "Rank {rank} waits for the disk in {disk:%} of its time: {read} read, {written} written"
            evidence = remark(message, disk=disk, written=written, **figures)
            yield Pattern("disk", rank, evidence, "read in loaders, write in the background: pyperf-suite run transfer")


def _straggler(job: _Job, step_s: Mapping[int, float], starved: set[int | None]) -> Iterator[Pattern]:
    if len(job.ranks) < 2:
        return

    def stands_out(figure: Mapping[int, float]) -> tuple[int, float, float]:
        slowest = max(figure, key=lambda rank: figure[rank])
        return slowest, figure[slowest], statistics.median(figure[rank] for rank in figure if rank != slowest)

    def named(message: str, rank: int, **figures: Any) -> Pattern:
        message += "; it is process {pid}"
        evidence = remark(message, rank=rank, pid=job.ranks[rank][-1].pid, **figures)
        return Pattern("straggler", rank, evidence, "pyperf-suite run topology, and baseline on both devices")

    if step_s.keys() == job.ranks.keys():
        rank, worst, others = stands_out(step_s)
        if worst >= SLOWER_STEPS * others:
            message = "Rank {rank} takes {own:duration} for a step, the others {others:duration} (medians)"
            yield named(message, rank, own=worst, others=others)
            return
    gpus = ("sm_clock_mhz", "power_w", "sm_activity")
    clock, power, sms = ({rank: each for rank in job.ranks if (each := job.gpu(rank, name))} for name in gpus)
    if len(power) == len(clock) == len(job.ranks):
        slow, low, usual = stands_out({rank: -each for rank, each in clock.items()})
        # A rank that waits in a collective keeps the few SMs of that collective busy, and takes less power.
        by_sms, busy = (
            len(sms) == len(power),
            all((job.gpu(each, "utilization") or 0) >= GPU_BUSY for each in job.ranks),
        )
        rank, worst, others = stands_out(sms if by_sms else power)
        if -low <= LOWER_CLOCK * -usual:
            message = "The GPU of rank {rank} runs at {own} MHz, the others at {others} MHz"
            yield named(message, slow, own=f"{-low:.0f}", others=f"{-usual:.0f}")
        elif busy and (worst - others >= STRAGGLES_BY if by_sms else worst >= MORE_POWER * others):
            message = (
                "with {own:%} of its SMs, the others with {others:%}"
                if by_sms
                else "at {own:W}, the others at {others:W}"
            )
            message = f"All GPUs are busy, that of rank {{rank}} {message}: they wait for it"
            yield named(message, rank, own=worst, others=others)
        return
    rank, worst, others = stands_out({rank: job.mean(rank, lambda each: each.occupied) for rank in job.ranks})
    if worst - others >= STRAGGLES_BY and not starved:
        message = "Rank {rank} is busy in {own:%} of its time, the others in {others:%}: they wait for it"
        yield named(message, rank, own=worst, others=others)


def _waits_for_network(job: _Job) -> Iterator[Pattern]:
    # A GPU that waits in a collective's kernel counts as busy: only the CPU's waiting tells.
    if len(job.ranks) < 2 or job.gpus:
        return
    rate = job.machine(lambda each: each.network_bytes_per_s)
    loopback = job.machine(lambda each: each.loopback_bytes_per_s)
    traffic = f"{_rate(rate)} over networks, {_rate(loopback)} over loopback"
    more = "pyperf-suite run overlap; torchrun ... -m pyperf_suite collectives"
    idle = [1 - job.mean(rank, lambda each: each.occupied) for rank in job.ranks]
    if min(idle) >= WAITING and rate + loopback >= 1e6:
        message = "Every rank waits in {idle:%} of its time or more, and none for data: {traffic}"
        yield Pattern("network", None, remark(message, idle=min(idle), traffic=traffic), more)


def _waits_for_cpu(job: _Job) -> Iterator[Pattern]:
    allowed = job.samples[-1].allowed_cores
    for rank, past in job.ranks.items():
        busiest = job.mean(rank, lambda each: each.busiest_share)
        main, utilization = job.mean(rank, lambda each: each.occupied), job.gpu(rank, "utilization")
        if utilization is not None:
            if busiest >= BUSY_THREAD and utilization <= 1 - GPU_IDLE:
                message = "Rank {rank}: the thread {thread} is busy in {busy:%} of the time and the GPU in {used:%}"
                evidence = remark(message, rank=rank, thread=past[-1].busiest_thread, busy=busiest, used=utilization)
                more = "launches, or loading in the main process: CUDA graphs, torch.compile, larger batches, loaders"
                yield Pattern("cpu", rank, evidence, f"{more}; pyperf-suite run baseline input_pipeline")
            continue
        wanted = job.mean(rank, lambda each: each.wanted_cores)
        # Loaders may use the other cores, where a job has no more than two.
        loads = job.mean(rank, lambda each: each.loader_busy * each.loaders) >= 0.5 * (allowed - 1)
        if main >= BUSY_THREAD and wanted <= ONE_THREAD and allowed >= 2 * len(job.ranks) and not loads:
            message = "Rank {rank}: one thread is busy in {busy:%} of the time, where {allowed} CPUs are allowed"
            evidence = remark(message, rank=rank, busy=main, allowed=round(allowed))
            more = "larger operators, torch.compile, OMP_NUM_THREADS"
            yield Pattern("cpu", rank, evidence, f"{more}; pyperf-suite run baseline block")


def _idle_sms(job: _Job) -> Iterator[Pattern]:
    for rank, past in job.ranks.items():
        used, active = job.gpu(rank, "utilization"), job.gpu(rank, "sm_activity")
        if used is None or active is None or used < GPU_BUSY or active >= IDLE_SMS:
            continue
        message = "The GPU of rank {rank} runs kernels in {used:%} of the time, but with {active:%} of its SMs "
        message += "(tensor cores {tensor:%}); the thread {thread} is busy in {busy:%}: kernels that are small or short"
        message += ", or that wait in a collective" if len(job.ranks) > 1 else ""
        busy, tensor = job.mean(rank, lambda each: each.busiest_share), job.gpu(rank, "tensor_activity")
        evidence = remark(
            message, rank=rank, used=used, active=active, tensor=tensor, thread=past[-1].busiest_thread, busy=busy
        )
        more = "larger batches, torch.compile, CUDA graphs: pyperf-suite run tile_wave block"
        yield Pattern("idle SMs", rank, evidence, more + (" overlap" if len(job.ranks) > 1 else ""))


def _near_the_limit(job: _Job) -> Iterator[Pattern]:
    held = [
        (gpus[-1]["rank"], gpus[-1].get("memory_used_bytes"), gpus[-1].get("memory_total_bytes"))
        for gpus in job.gpus.values()
    ]
    for rank, used, total in held:
        if used and total and used >= (1 - MEMORY_LEFT) * total:
            message = "{left:size} of {total:size} are left on the GPU of rank {rank}: fragmentation may end a long run"
            evidence = remark(message, left=float(total - used), total=float(total), rank=rank)
            yield Pattern("memory limit", rank, evidence, "pyperf-suite run memory checkpointing")
    last = job.samples[-1]
    if 0 < last.memory_free_bytes < MEMORY_LEFT * last.memory_limit_bytes:
        message = "{left:size} of the {limit:size} of the machine or container are left"
        evidence = remark(message, left=float(last.memory_free_bytes), limit=float(last.memory_limit_bytes))
        yield Pattern(
            "memory limit", None, evidence, "fewer loaders, less prefetching: pyperf-suite run input_pipeline"
        )


def _leaks(job: _Job) -> Iterator[Pattern]:
    series: dict[tuple[str, int, str], list[tuple[float, float, float]]] = {}  # when, held, left
    for sample in job.samples:
        for each in sample.ranks:
            found = (sample.at_s, float(each.memory_bytes), float(sample.memory_free_bytes))
            series.setdefault(("Memory", each.rank, ""), []).append(found)
        for gpu in sample.gpus:
            used, total = gpu.get("memory_used_bytes", 0.0), gpu.get("memory_total_bytes", 0.0)
            series.setdefault(("GPU memory", gpu["rank"], gpu["uuid"]), []).append((sample.at_s, used, total - used))
    for (memory_name, rank, _), points in series.items():
        slope = growth([at_s for at_s, _, _ in points], [held for _, held, _ in points])
        if slope and points[-1][2] / slope < FURTHEST_END_S:
            message = "{what} of rank {rank} grows by {slope}, to {held:size}; it ends in {end}"
            figures: dict[str, Any] = {
                "held": points[-1][1],
                "slope": _rate(slope),
                "end": _span(points[-1][2] / slope),
            }
            more = "tensors kept with their graph, lists that grow, loaders that copy: pyperf-suite run memory"
            yield Pattern("memory leak", rank, remark(message, what=memory_name, rank=rank, **figures), more)


def growth(times: Sequence[float], used: Sequence[float]) -> float | None:
    """Bytes a second by which memory grows steadily; None where it does not, or levels off.

    It must grow in each of `PARTS` parts of the time. The slope is the median of those between all points half the
    time apart (after Theil and Sen).
    """
    size = len(used) // PARTS
    if size < 1:
        return None
    parts = [statistics.median(used[len(used) - (k + 1) * size : len(used) - k * size]) for k in reversed(range(PARTS))]
    steps = [after - before for before, after in itertools.pairwise(parts)]
    total = parts[-1] - parts[0]
    if min(steps) <= 0 or total < max(LEAST_GROWTH_BYTES, LEAST_GROWTH * parts[-1]):
        return None
    if min(steps) < 0.3 * total / len(steps) or steps[-1] < 0.5 * total / len(steps):
        return None
    half = len(used) // 2
    slopes = [
        (used[k + half] - used[k]) / (times[k + half] - times[k])
        for k in range(len(used) - half)
        if times[k + half] > times[k]
    ]
    return statistics.median(slopes) if slopes else None


def _rate(bytes_per_s: float) -> str:
    """As in 3.2 MB/s."""
    unit, scale = next((each for each in (("GB", 1e9), ("MB", 1e6)) if bytes_per_s >= each[1]), ("kB", 1e3))
    return f"{bytes_per_s / scale:.3g} {unit}/s"


def _span(seconds: float) -> str:
    """As in 90 s, 12 min, 5.2 h or 3.1 days."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86_400:.1f} days"
