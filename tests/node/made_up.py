"""Made-up nodes: what topology reads of them, and the records of an acceptance."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pyperf_suite.findings.axes import sizes
from pyperf_suite.findings.rows import rows_of
from pyperf_suite.hardware.topology import parse
from pyperf_suite.node.probes.accept import AcceptAxes, sweep
from pyperf_suite.node.probes.accept import _Node as Node
from pyperf_suite.planner.expected_times import expected_times
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from tests.records import a_record

MATRICES = Path(__file__).parents[1] / "core" / "hardware" / "topologies"
TWO_NODES = [
    {"number": 0, "cpus": "0-63,128-191", "memory_bytes": 1 << 40, "distances": [10, 21]},
    {"number": 1, "cpus": "64-127,192-255", "memory_bytes": 1 << 40, "distances": [21, 10]},
]
HOST: dict[str, Any] = {
    "model": "a CPU",
    "sockets": 2,
    "cores": 128,
    "online": "0-255",
    "caches_assumed": False,
    "l2_bytes": 2 << 20,
    "l2_total_bytes": 256 << 20,
    "l3_bytes": 105 << 20,
    "l3_total_bytes": 210 << 20,
    "quota_cores": None,
    "memory_left_bytes": None,
    "hypervisor": None,
    "container": None,
    "pcie": [],
    "nodes": TWO_NODES,
    "allowed_cpus": "0-63,128-191",
    "allowed_nodes": "0-1",
}
SOUND: dict[str, Any] = dict.fromkeys(("now", "slot", "card"), "gen 5 x16") | {"awake": True}


def gpus_of(matrix: str, name: str, capability: tuple[int, int], links: int, **changed: dict[int, Any]) -> Any:
    """The details of a machine with that matrix; `changed` has a field's other values by GPU."""
    graph = parse((MATRICES / f"{matrix}.txt").read_text())
    gpus = []
    for index, smi in enumerate(graph.gpus):
        gpu = {"index": index, "name": name, "compute_capability": list(capability), "smi": smi, **SOUND}
        gpu |= {"cpus": graph.cpus[smi], "numa_node": int(graph.numa.get(smi, 0)), "nvlinks": [True] * links}
        gpus.append(gpu | {field: values[index] for field, values in changed.items() if index in values})
    placed = {name: HOST[name] for name in ("nodes", "allowed_cpus", "allowed_nodes")}
    return {"gpus": gpus, "matrix": graph.to_json(), "unavailable": [], "nccl": {}, **placed}


def h200(**changed: dict[int, Any]) -> Any:
    return gpus_of("8xh200_sxm", "NVIDIA H200", (9, 0), 18, **changed)


EIGHT = AcceptAxes((8192,), (132,), sizes("256MiB"), sizes("256MiB"), (8,), ("cuda",))
TWO_CORES = AcceptAxes((1024,), (1, 2), sizes("64MiB"), sizes("4MiB"), (2,))
H200 = {"kind": "cuda", "slug": "cuda-h200-x8", "model": "NVIDIA H200", "count": 8, "link": "nvlink4x18"}
CPU = {"kind": "cpu", "slug": "cpu-two", "model": "a CPU", "cores": 2}
READ = {"before": {}, "after": {"sm_clock_mhz": 1755}, "throttle_reasons_seen": ["power cap"]}
WELL = {"uncorrected_errors": 0, "remapping": "none", "default_power_limit_w": 700.0}
LINKS = {f"{one}-{other}": {"path": "NV18"} for one in range(8) for other in range(one + 1, 8)}
Factor = Callable[[Case, int], float]


def as_usual(case: Case, device: int) -> float:
    return 1.0


def gpu_node(
    factor: Factor = as_usual,
    noise: float = 0.01,
    seed: int = 0,
    read: Mapping[int, Any] | None = None,
    health: Mapping[int, Any] | None = None,
    slow_pairs: Mapping[tuple[int, int], float] | None = None,
    **links: dict[int, Any],
) -> list[Record]:
    """Eight H200 at `factor` times what the laws say; copies reach 0.85 of the slot, pairs 0.8 of NV18."""
    random, records = np.random.default_rng(seed), []
    law = Node(rows_of([a_record(next(sweep(EIGHT)), identity=H200)]), expected_times, {})
    details = h200(**links) | {"allowed_cpus": "0-255"}
    for gpu in details["gpus"]:
        gpu["settings"] = {"maximum_sm_clock_mhz": 1980, "power_limit_w": 700.0}
        gpu["health"] = WELL | (health or {}).get(gpu["index"], {})
    for case in sweep(EIGHT):
        if case.operator == "topology":
            if case.parameters.part == "gpus":
                records.append(a_record(case, None, kind="static", identity=H200, kernel=_kernel(details)))
            continue
        for device in range(1 if case.operator == "collective" else 8):
            p, sampling = case.parameters, {}
            if case.operator == "collective" and p.pattern:
                each = 2 * p.message_bytes / (0.8 * 450e9)
                ranks = np.full(8, each) * random.lognormal(0, noise, 8)
                for pair in p.pairs:
                    ranks[list(pair)] *= (slow_pairs or {}).get((min(pair), max(pair)), 1.0)
                seconds, sampling = float(ranks.mean()), {"rank_median_s": ranks.tolist(), "nodes": 1, "ranks": 8}
            else:
                expected = law.expected(case)
                assert expected is not None
                seconds = p.size_bytes / (0.85 * 63e9) if case.operator == "transfer" else expected.seconds
                seconds *= float(random.lognormal(0, noise))
            records.append(
                a_record(
                    case,
                    seconds * factor(case, device),
                    process=device,
                    sampling=sampling,
                    identity=H200,
                    state={"device": f"cuda:{device}", "gpu": {"links": LINKS}},
                    quality={"converged": True, "gpu": (read or {}).get(device, READ)},
                )
            )
    return records


def _kernel(details: Any, part: str = "gpus") -> dict[str, Any]:
    return {"name": "topology", "path": part, "details": details}


def cpu_node(
    factor: Factor = as_usual, busy: float = 0.0, stolen: float = 0.0, noise: float = 0.01, seed: int = 0
) -> list[Record]:
    """Two cores of 3 GHz with vectors of 256 bits that reach half of their peak, copy 10 GB/s and reduce 1 GB/s."""
    random, records = np.random.default_rng(seed), []
    for case in sweep(TWO_CORES):
        if case.operator == "topology":
            host = HOST | {"cores": 2, "vector_bits": 256, "online": "0-1", "allowed_cpus": "0-1", "nodes": []}
            records.append(a_record(case, None, kind="static", identity=CPU, kernel=_kernel(host, "host")))
            continue
        workers = case.parameters.schedule.workers if case.operator == "matmul" else 1
        seconds = {"matmul": 2 * 1024**3 / (48e9 * workers), "transfer": 2**26 / 10e9, "collective": 2**22 / 1e9}
        took = {"cpu_busy_s": workers + busy, "process_cpu_s": workers, "cpu_steal_s": stolen, "elapsed_s": 1.0}
        for process in range(3):
            time = seconds[case.operator] * float(random.lognormal(0, noise)) * factor(case, 0)
            quality = {"converged": True, "before": {"cpu_mhz": {"high": 3000.0}}, **took}
            records.append(a_record(case, time, process=process, identity=CPU, quality=quality))
    return records
