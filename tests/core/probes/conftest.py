"""A machine of made-up links, whose records have the form that the ranks of a real one leave behind."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from pyperf_suite.laws.traffic import bus_factor
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.collective import CollectiveParameters
from tests.records import a_record, metric


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test runs as a rank of a launcher."""
    for name in ("RANK", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


START = datetime.datetime(2026, 1, 1, tzinfo=datetime.timezone.utc)
ITERATIONS = 40


def on_time(parameters: CollectiveParameters, process: int) -> float:
    """The factor of a network that is as fast at every visit."""
    return 1.0


@dataclass(frozen=True)
class Network:
    """A collective takes `start_s` and its bytes on the bus at `gb_per_s`; implementations add their own time.

    `late` has ranks with the seconds that they arrive after the others, `slow` pairs that carry that share of the rate.
    A visit's time is multiplied by `factor`; minutes pass between visits.
    """

    start_s: float = 20e-6
    gb_per_s: float = 10.0
    added_s: dict[str, float] = field(default_factory=dict)
    late: dict[int, float] = field(default_factory=dict)
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    factor: Callable[[CollectiveParameters, int], float] = on_time
    noise: float = 0.0
    identity: dict[str, Any] = field(default_factory=lambda: {"kind": "cpu", "model": "a CPU"})
    details: dict[str, Any] = field(default_factory=dict)
    nodes: int = 1
    profile: str = "full"

    def seconds(self, case: Case) -> float:
        """Seconds of one message when all arrive at once."""
        p = case.parameters
        factor = float(bus_factor(p.operation.counted_as, p.ranks)) or 1.0
        added = self.added_s.get(case.implementation, 0.0)
        return self.start_s + added + p.message_bytes * factor / (self.gb_per_s * 1e9)

    def sampling(self, case: Case, scale: float, random: np.random.Generator) -> dict[str, Any]:
        """Samples of each rank: the later one arrives, the shorter its own time; idle ranks have none."""
        p = case.parameters
        lag = np.array([self.late.get(rank, 0.0) for rank in range(p.ranks)])
        samples: list[list[float]] = []
        for rank in range(p.ranks):
            pair = next((pair for pair in p.pairs if rank in pair), None)
            if p.pairs and pair is None:
                samples.append([])
                continue
            share = self.slow.get((min(pair), max(pair)), 1.0) if pair else 1.0
            trips = 2 if p.op == "ping_pong" else 1
            own_s = scale * self.seconds(case) * trips / share + lag.max() - lag[rank]
            samples.append((own_s * np.exp(self.noise * random.standard_normal(ITERATIONS))).tolist())
        medians = [float(np.median(each)) if each else None for each in samples]
        return {
            "ranks": p.ranks,
            "nodes": self.nodes,
            "rank_median_s": medians,
            "rank_lag_s": [None if own is None else float(lag[rank]) for rank, own in enumerate(medians)],
            "rank_samples_s": samples,
            "clock_uncertainty_s": 2e-6,
        }

    def record(self, case: Case, process: int, position: int, **changed: Any) -> Record:
        """One visit."""
        random = np.random.default_rng(position)
        scale = self.factor(case.parameters, process) * float(np.exp(self.noise * random.standard_normal()))
        sampling = self.sampling(case, scale, random)
        time_s = np.mean([samples for samples in sampling["rank_samples_s"] if samples], axis=0)
        skew_s = max(self.late.values(), default=0.0)
        usual: dict[str, Any] = {
            "process": process,
            "position": position,
            "started_at": (START + datetime.timedelta(minutes=process)).isoformat(timespec="milliseconds"),
            "probe": "collectives",
            "profile": self.profile,
            "metrics": {"transfer": scale * self.seconds(case), "skew": skew_s},
            "details": self.details,
            "sampling": sampling,
            "verification": {"passed": True, "wrong": 0, "compared": 100, "message": "correct"},
            "identity": self.identity,
        }
        return a_record(case, metric(float(np.median(time_s)), samples=time_s.tolist()), **usual | changed)

    def records(self, cases: Sequence[Case], processes: int = 2) -> list[Record]:
        """Every case in every process."""
        visits = [(process, case) for process in range(processes) for case in cases]
        return [self.record(case, process, position) for position, (process, case) in enumerate(visits)]


@pytest.fixture
def network() -> type[Network]:
    """The class of made-up machines."""
    return Network
