"""Samples of a running job: what its processes and GPUs did in each interval, from /proc (proc(5)) and NVML.

Ranks are distinguished by RANK and similar variables in the environment of their processes, else by the threads of
torch's process groups. Ten times a second the kernel function in which each rank's main thread sleeps is read.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from pyperf_suite.hardware import memory
from pyperf_suite.hardware.kernel_files import KernelFiles
from pyperf_suite.hardware.nvml import Nvml

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
LOCAL_VARIABLES = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
# Threads of torch.distributed that each rank has; that of a store may be in a process that trains nothing.
GROUP_THREADS = ("pt_gloo_", "pt_nccl_")
LOADER_NAME = "pt_data_worker"  # as torch names the main thread of a DataLoader's worker
# More loaders than these are not looked at between samples.
MOST_LOADERS_LOOKED_AT = 16
# Samples after which the parents of other processes are read anew: process numbers are used again.
FORGET_STRANGERS = 60
FIND_GPUS_EVERY, READ_MEMORY_EVERY, READ_STRANGERS_EVERY = 10, 5, 4
# Share of its time that a rank is ready without a CPU, before other processes are looked at.
LACKING = 0.1
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Reasons for which a thread sleeps, by the beginning of the kernel function that it sleeps in.
WAITS = {
    "pipe": ("pipe_", "anon_pipe_", "do_sys_poll", "do_poll", "poll_", "do_select", "ep_poll", "do_epoll", "unix_"),
    "thread": ("futex_", "do_futex"),
    "timer": ("hrtimer_nanosleep", "do_nanosleep", "common_nsleep"),
    "network": ("sk_wait", "tcp_", "inet_", "wait_woken"),
    "disk": ("folio_", "wait_on_page", "io_schedule", "nfs", "rpc_", "fuse_", "request_wait", "ceph_", "balance_dirty"),
    "child": ("do_wait", "kernel_wait"),
}


@dataclass
class Process:
    """A process of the job, as last read. `cpu_s` is of all its threads since it began."""

    pid: int
    parent: int
    start: int
    name: str
    arguments: tuple[str, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)  # by the launcher's variable
    local_rank: int = 0
    cpu_s: float = 0.0
    in_group: bool = False  # whether it has been a rank of a process group
    # How many when last read and before: names are read again after a change, for a thread names itself once it runs.
    threads: tuple[int, int] = (0, 0)

    @property
    def is_watcher(self) -> bool:
        """True for this command itself, as on each rank under torchrun."""
        own = any(each == "pyperf_suite" or each.endswith("pyperf-suite") for each in self.arguments[:4])
        return own and "watch" in self.arguments[:5]


@dataclass(frozen=True)
class Team:
    """A rank: the process that trains, the processes that load its data, and all that it started."""

    rank: int
    trainer: Process
    loaders: tuple[Process, ...]
    members: tuple[Process, ...]


@dataclass(frozen=True)
class RankSample:
    """One rank in one interval. Shares are of the interval; `queue_share` is the time ready to run without a CPU."""

    rank: int
    pid: int
    cores: float  # used by the trainer's threads together
    wanted_cores: float  # the same with the time that they were ready to run and had no CPU
    main_share: float
    queue_share: float
    busiest_thread: str
    busiest_share: float
    waits: Mapping[str, float]  # share of looks at the main thread by what it waited for
    loaders: int
    loader_busy: float  # share of time in which loaders were not waiting for orders, their mean
    loader_disk: float  # waiting for the disk
    read_bytes_per_s: float
    write_bytes_per_s: float
    memory_bytes: int  # anonymous memory of all the rank's processes

    @property
    def occupied(self) -> float:
        """Share of the interval in which the main thread had something to do of its own."""
        return min(1.0, self.main_share + self.queue_share + self.waits.get("disk", 0.0))


Gpu = Mapping[str, Any]
"""A GPU in one interval: `rank`, `uuid`, what `Nvml.load`, `readings`, `activity`, `settings` and `health` say of it,
`energy_j`, `pcie_bytes_per_s` and `nvlink_bytes_per_s` of the interval. What it does not report is absent."""


@dataclass(frozen=True)
class Sample:
    """The whole job in one interval that ended `at_s` after watching began."""

    at_s: float
    seconds: float
    ranks: tuple[RankSample, ...]
    gpus: tuple[Gpu, ...] = ()
    allowed_cores: float = 1.0
    memory_free_bytes: int = 0
    memory_limit_bytes: int = 0
    network_bytes_per_s: float = 0.0  # sent and received, InfiniBand included, of the whole machine
    loopback_bytes_per_s: float = 0.0
    throttled_share: float = 0.0  # kept from running by a CPU quota
    started_s: float = 0.0  # when the youngest process of the job began
    busiest_other: str = ""  # the process that used most CPU and is none of the job's, where ranks lacked some


def teams(processes: Mapping[int, Process]) -> list[Team]:
    """The ranks among a job's processes, in order; one rank 0 where no environment names any."""
    job = [each for each in processes.values() if each.pid != os.getpid() and not each.is_watcher]
    # One launcher may start another, as srun does torchrun: the innermost numbers the ranks.
    variable = next((name for name in RANK_VARIABLES if any(name in each.ranks for each in job)), "")
    ranks = sorted({each.ranks[variable] for each in job if variable in each.ranks})
    groups = [[each for each in job if each.ranks.get(variable) == rank] for rank in ranks]
    result = []
    for rank, members in zip(ranks or itertools.count(), groups or _by_process_groups(job) or [job]):  # noqa: B905
        group = {each.pid: each for each in members}
        tops = [each for each in group.values() if each.parent not in group]
        if not tops:
            continue
        trainer = max(tops, key=lambda each: (each.in_group, each.cpu_s))
        while not trainer.in_group and (child := _works_for(trainer, group)):
            trainer = child
        below = _below(trainer, group)
        loaders = [each for each in below if each.name.startswith(LOADER_NAME)]
        loaders = loaders or [each for each in below if _is_copy(each, trainer)]
        result.append(Team(rank, trainer, tuple(loaders), tuple(group.values())))
    return result


def _by_process_groups(job: Sequence[Process]) -> list[list[Process]]:
    """The processes of each rank that torch.multiprocessing.spawn started, or a like call; empty of a single rank.

    They are in the order in which they began, which is spawn's index.
    """
    trainers = sorted((each for each in job if each.in_group), key=lambda each: (each.start, each.pid))
    loose = {each.pid: each for each in job if not each.in_group}
    return [[trainer, *_below(trainer, loose)] for trainer in trainers] if len(trainers) > 1 else []


def _works_for(launcher: Process, group: Mapping[int, Process]) -> Process | None:
    """The child that does the work of a shell or launcher; None of a process that works itself."""
    children = [each for each in group.values() if each.parent == launcher.pid and not _is_copy(each, launcher)]
    cpu_s = {each.pid: each.cpu_s + sum(one.cpu_s for one in _below(each, group)) for each in children}
    best = max(children, key=lambda each: cpu_s[each.pid], default=None)
    return best if best is not None and cpu_s[best.pid] > 2 * launcher.cpu_s else None


def _is_copy(child: Process, parent: Process) -> bool:
    """True if it was forked or spawned by multiprocessing, as loaders are."""
    words = " ".join(child.arguments)
    is_helper = "resource_tracker" in words or not words
    return not is_helper and (child.arguments == parent.arguments or "multiprocessing" in words)


def _below(top: Process, group: Mapping[int, Process]) -> list[Process]:
    found = [each for each in group.values() if each.parent == top.pid]
    for each in found:
        found += [one for one in group.values() if one.parent == each.pid]
    return found


@dataclass
class _Counts:
    """Counters of a process when it was last sampled."""

    cpu_s: float = 0.0
    threads: dict[int, tuple[float, float]] = field(default_factory=dict)  # run and queue seconds
    io: tuple[int, int] = (0, 0)


class Job:
    """The processes below one, itself included, and their samples; those whose parents end remain the job's."""

    def __init__(self, top: int, manager: Nvml | None = None, proc: Path = Path("/proc")) -> None:
        self._top, self._manager, self._proc, self._files = top, manager, proc, KernelFiles()
        self.processes: dict[int, Process] = {}
        self._strangers: set[int] = set()
        self._strangers_s: dict[int, float] = {}  # CPU seconds of each when it was last read
        self._counts: dict[int, _Counts] = {}
        self._looks: dict[int, Counter[str]] = {}
        # By GPU in use, the rank, its settings, and its load when it was last sampled.
        self._gpus: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {}
        # Ranks by process, at the time when most of them were there.
        self.rank_of: dict[int, int] = {}
        self._gpus_of = 0  # number of ranks then
        self.closed: set[str] = set()  # processes that may not be read, as another user's
        self._began_s = self._last_s = time.monotonic()
        self._samples = self._free_bytes = 0
        self._limit_bytes = memory.memory_limit_bytes(self._files) or int(psutil.virtual_memory().total)
        self._quota = memory.cpu_quota_cores(self._files) or float("inf")
        self.find()
        self.teams = teams(self.processes)
        self._before = self._machine()
        for team in self.teams:
            self._rank(team, 1.0)

    def look(self) -> None:
        """Note what main threads wait for: "running", a key of `WAITS` or "other"; 20 microseconds a thread."""
        for team in self.teams:
            for each in (team.trainer, *team.loaders[:MOST_LOADERS_LOOKED_AT]):
                if place := self._text(f"{each.pid}/wchan"):
                    kind = next((kind for kind, begins in WAITS.items() if place.startswith(begins)), "other")
                    self._looks.setdefault(each.pid, Counter())["running" if place == "0" else kind] += 1

    def sample(self) -> Sample | None:
        """Return the sample since the last one; None where no process of the job is left."""
        now = time.monotonic()
        seconds, self._last_s = now - self._last_s, now
        self._samples += 1
        if self._samples % FORGET_STRANGERS == 0:
            self._strangers.clear()
        self.find()
        self.teams = teams(self.processes)
        if not self.teams or seconds <= 0:
            return None
        if len(self.teams) >= len(self.rank_of):
            self.rank_of = {team.trainer.pid: team.rank for team in self.teams}
        ranks = tuple(self._rank(team, seconds) for team in self.teams)
        self._looks.clear()
        machine, before = self._machine(), self._before
        self._before = machine
        if self._samples % READ_MEMORY_EVERY == 1:
            self._free_bytes = memory.available_bytes(self._files)
        youngest = max(each.start for each in self.processes.values()) * TICK_S
        lacking = any(each.queue_share >= LACKING for each in ranks) and self._samples % READ_STRANGERS_EVERY == 1
        cores: set[int] = set()
        for team in self.teams:
            with contextlib.suppress(OSError):
                cores |= os.sched_getaffinity(team.trainer.pid)
        return Sample(
            now - self._began_s,
            seconds,
            ranks,
            tuple(self._gpu_samples(seconds)),
            allowed_cores=min(len(cores) or 1, self._quota),
            memory_free_bytes=self._free_bytes,
            memory_limit_bytes=self._limit_bytes,
            network_bytes_per_s=(machine[0] - before[0]) / seconds,
            loopback_bytes_per_s=(machine[1] - before[1]) / seconds,
            throttled_share=(machine[2] - before[2]) / seconds,
            started_s=youngest - time.clock_gettime(time.CLOCK_BOOTTIME) + now - self._began_s,
            busiest_other=self._busiest_other() if lacking else "",
        )

    def _busiest_other(self) -> str:
        """Name and number of the process outside the job that used most CPU since this was last asked."""
        own = {os.getpid(), os.getppid()}
        stats = {pid: stat for pid in self._strangers - own if (stat := self._stat(pid))}
        now = {pid: (int(stat[12]) + int(stat[13])) * TICK_S for pid, stat in stats.items()}
        used = {pid: cpu_s - self._strangers_s[pid] for pid, cpu_s in now.items() if pid in self._strangers_s}
        self._strangers_s = now
        most = max(used, key=used.__getitem__, default=0)
        return f"{stats[most][0]} (process {most})" if used.get(most) else ""

    def find(self) -> None:
        """Read who belongs to the job now."""
        for pid, known in list(self.processes.items()):
            if not self._read(pid, known):
                del self.processes[pid]
                self._counts.pop(pid, None)
        fresh = {}
        for pid in self._numbers("") - self.processes.keys():
            if pid not in self._strangers and (stat := self._stat(pid)):
                fresh[pid] = Process(pid, int(stat[2]), int(stat[20]), stat[0])
        while joined := [pid for pid, each in fresh.items() if pid == self._top or each.parent in self.processes]:
            for pid in joined:
                self.processes[pid] = fresh.pop(pid)
                self._read(pid, self.processes[pid], is_new=True)
        self._strangers |= fresh.keys()

    def _read(self, pid: int, process: Process, is_new: bool = False) -> bool:
        """True if the process still runs; its names are read anew where its name has changed, as by exec."""
        stat = self._stat(pid)
        if not stat or stat[1] in "ZX" or int(stat[20]) != process.start:
            return False
        process.parent = int(stat[2])
        process.cpu_s = (int(stat[12]) + int(stat[13])) * TICK_S
        if is_new or stat[0] != process.name or not process.arguments or self._samples < 3:
            process.name = stat[0]
            process.arguments = tuple(self._text(f"{pid}/cmdline").split("\0")[:-1])
            held = dict(each.partition("=")[::2] for each in self._text(f"{pid}/environ").split("\0"))
            process.ranks = {name: int(held[name]) for name in RANK_VARIABLES if held.get(name, "").isdecimal()}
            locally = (held[name] for name in LOCAL_VARIABLES if held.get(name, "").isdecimal())
            process.local_rank = int(next(locally, 0))
        now = int(stat[18])
        if not process.in_group and not process.ranks and process.threads != (now, now):
            names = [self._text(f"{pid}/task/{tid}/comm") for tid in self._numbers(f"{pid}/task")]
            process.in_group = any(name.startswith(GROUP_THREADS) for name in names)
            process.threads = process.threads[1], now
        return True

    def _rank(self, team: Team, seconds: float) -> RankSample:
        trainer = team.trainer
        before = self._counts.get(trainer.pid)
        threads = {tid: self._thread(f"{trainer.pid}/task/{tid}") for tid in self._numbers(f"{trainer.pid}/task")}
        now = _Counts(trainer.cpu_s, threads, self._io(team))
        self._counts[trainer.pid] = now
        then = before or now
        spent = {
            tid: (run - old_run, queued - old_queued)
            for tid, (run, queued) in now.threads.items()
            for old_run, old_queued in [then.threads.get(tid, (0.0, 0.0) if before else (run, queued))]
        }
        main, queued = spent.get(trainer.pid, (0.0, 0.0))
        busiest = max(spent, key=lambda tid: sum(spent[tid]), default=trainer.pid)
        looks = self._looks.get(trainer.pid, Counter())
        if looks["running"] / max(1, looks.total()) > (main + queued) / seconds + 0.5:
            looks = Counter()  # a kernel that does not say what threads sleep in
        busy, disk = self._loaders(team, seconds)
        return RankSample(
            team.rank,
            trainer.pid,
            cores=(now.cpu_s - then.cpu_s) / seconds,
            wanted_cores=sum(map(sum, spent.values())) / seconds,
            main_share=min(1.0, main / seconds),
            queue_share=min(1.0, queued / seconds),
            busiest_thread=self._text(f"{trainer.pid}/task/{busiest}/comm").strip(),
            busiest_share=min(1.0, sum(spent.get(busiest, (0.0,))) / seconds),
            waits={kind: count / looks.total() for kind, count in looks.items()},
            loaders=len(team.loaders),
            loader_busy=busy,
            loader_disk=disk,
            read_bytes_per_s=max(0, now.io[0] - then.io[0]) / seconds,
            write_bytes_per_s=max(0, now.io[1] - then.io[1]) / seconds,
            memory_bytes=sum(self._anonymous_bytes(each.pid) for each in team.members),
        )

    def _loaders(self, team: Team, seconds: float) -> tuple[float, float]:
        """How much of the time loaders were not waiting for orders, and how much for the disk."""
        busy, disk = [], []
        for each in team.loaders:
            threads = self._thread(f"{each.pid}/task/{each.pid}")
            before = self._counts.get(each.pid)
            self._counts[each.pid] = _Counts(threads={each.pid: threads})
            worked = sum(threads) - sum(before.threads[each.pid]) if before else 0.0
            looks = self._looks.get(each.pid, Counter())
            elsewhere = sum(looks[kind] for kind in ("disk", "network", "timer")) / max(1, looks.total())
            busy.append(min(1.0, worked / seconds + elsewhere))
            disk.append(looks["disk"] / max(1, looks.total()))
        return (sum(busy) / len(busy), sum(disk) / len(disk)) if busy else (0.0, 0.0)

    def _gpu_samples(self, seconds: float) -> Iterable[Gpu]:
        if self._manager is None:
            return
        if self._samples % FIND_GPUS_EVERY == 1 or not self._gpus or self._gpus_of != len(self.teams):
            self._find_gpus(self._manager)
        for uuid, (rank, settings, before) in self._gpus.items():
            load = self._manager.load(uuid)
            self._gpus[uuid] = rank, settings, load
            found = {"rank": rank, "uuid": uuid, **settings, **load, **self._manager.readings(uuid)}
            for name in {"pcie_bytes", "nvlink_bytes"} & load.keys() & before.keys():
                found[f"{name}_per_s"] = (sum(load[name]) - sum(before[name])) / seconds
            if "energy_j" in load:
                found["energy_j"] = load["energy_j"] - before.get("energy_j", load["energy_j"])
            yield found | self._manager.activity(uuid)

    def _find_gpus(self, manager: Nvml) -> None:
        """Find the GPUs that the job's processes compute on: by NVML, or by local rank where it sees no such process.

        In a container NVML may not know the numbers that processes have there.
        """
        uuids, self._gpus_of = manager.uuids(), len(self.teams)
        rank_of = {each.pid: team.rank for team in self.teams for each in team.members}
        using = {uuid: [pid for pid, _ in manager.processes(uuid) or ()] for uuid in uuids}
        users = {uuid: rank_of[pid] for uuid, pids in using.items() for pid in pids if pid in rank_of}
        if uuids and not users:
            for team in self.teams:
                if re.search(r"/dev/nvidia\d", self._text(f"{team.trainer.pid}/maps")):
                    local = team.trainer.local_rank if team.trainer.ranks else team.rank
                    users.setdefault(uuids[local % len(uuids)], team.rank)
        for uuid, rank in users.items():  # a rank may not have been known before
            load = self._gpus[uuid][2] if uuid in self._gpus else {}
            self._gpus[uuid] = rank, {**manager.settings(uuid), **manager.health(uuid)}, load

    def gpu_names(self) -> list[str]:
        """The products' names of the GPUs that the job was seen to use."""
        return [self._manager.name(uuid) or "" for uuid in self._gpus] if self._manager else []

    def _machine(self) -> tuple[float, float, float]:
        """Bytes over networks and loopback and seconds throttled, so far."""
        network = loopback = 0.0
        for name, counted in psutil.net_io_counters(pernic=True).items():
            total = counted.bytes_sent + counted.bytes_recv
            network, loopback = (network, loopback + total) if name == "lo" else (network + total, loopback)
        ports = self._files.matching("sys/class/infiniband/*/ports/*/counters/port_*_data")
        network += sum(4.0 * (self._files.integer(each) or 0) for each in ports)  # counted in words of 4 bytes
        return network, loopback, memory.cpu_throttled_s(self._files) or 0.0

    def _numbers(self, path: str) -> set[int]:
        """The processes or threads of a folder."""
        try:
            return {int(name) for name in os.listdir(f"{self._proc}/{path}") if name.isdigit()}  # noqa: PTH208 - fast
        except OSError:
            return set()

    def _thread(self, path: str) -> tuple[float, float]:
        """Seconds that a thread ran, and that it was ready and had no CPU; the latter 0 where it is not counted."""
        words = self._text(f"{path}/schedstat").split()
        if len(words) == 3:
            return int(words[0]) / 1e9, int(words[1]) / 1e9
        fields = self._text(f"{path}/stat").rpartition(")")[2].split()
        return ((int(fields[11]) + int(fields[12])) * TICK_S, 0.0) if len(fields) > 12 else (0.0, 0.0)

    def _io(self, team: Team) -> tuple[int, int]:
        """Bytes that the trainer and its loaders had from and to storage."""
        texts = [self._text(f"{each.pid}/io") for each in (team.trainer, *team.loaders)]
        read, written = (
            re.findall(rf"^{name}: (\d+)$", "\n".join(texts), re.M) for name in ("read_bytes", "write_bytes")
        )
        return sum(map(int, read)), sum(map(int, written))

    def _anonymous_bytes(self, pid: int) -> int:
        words = self._text(f"{pid}/statm").split()
        return max(0, int(words[1]) - int(words[2])) * PAGE_BYTES if len(words) > 2 else 0

    def _stat(self, pid: int) -> list[str]:
        """Name, state, parent and so on, numbered as in proc(5) less 2; empty if the process is gone."""
        begin, _, end = self._text(f"{pid}/stat").rpartition(")")
        return [begin.partition("(")[2], *end.split()] if end else []

    def _text(self, path: str) -> str:
        try:
            with open(f"{self._proc}/{path}", "rb") as file:  # noqa: PTH123 - called hundreds of times a second
                return file.read().decode("utf-8", "replace")
        except OSError as error:
            self.closed |= {path.partition("/")[0]} if isinstance(error, PermissionError) else set()
            return ""
