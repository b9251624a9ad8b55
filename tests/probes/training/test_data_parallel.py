"""What the data_parallel probe asks for, and what it tells of made-up steps whose truth is known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.training.data_parallel import DataParallelLaw, Exchange
from pyperf_suite.probes.training.data_parallel.findings import explain
from pyperf_suite.probes.training.data_parallel.probe import DataParallelAxes, DataParallelProbe
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.axes import Sizes
from pyperf_suite.spec.discovery import find_probe
from pyperf_suite.spec.findings import Findings

CPU = Device("cpu")
PROBE = DataParallelProbe()
AXES = PROBE.axes("standard", CPU)
PROCESSES = 3
COMPUTE_S_A_LAYER = 8e-3


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def all_reduce_s(size_bytes: float) -> float:
    return 1e-3 + size_bytes / 1e9


LAW = DataParallelLaw(all_reduce_s, slowdown=1.5, hidden=0.8)


def buckets_of(parameters: Any) -> list[int]:
    total = parameters.gradient_bytes
    count = max(1, total // parameters.bucket_bytes) if parameters.exchange == "ddp" else 1
    return [total // count] * (count - 1) + [total - total // count * (count - 1)]


def seconds_of(case: Case) -> float:
    """By the law; DataParallel takes 1.2 times as long as DDP, and without direct copies all takes 1.3 times."""
    p = case.parameters
    factor = 1.0 if p.peer_to_peer else 1.3
    if case.operator == "collective":
        return factor * all_reduce_s(p.bytes)
    compute_s = COMPUTE_S_A_LAYER * p.layers
    if p.exchange == "none":
        return compute_s
    shape = p if p.exchange != "dp" else replace(p, exchange="ddp")
    exchange = Exchange(
        p.accumulate * compute_s,
        tuple(buckets_of(shape)),
        p.exchange != "after",
        p.accumulate,
        not p.no_sync,
    )
    return (1.2 if p.exchange == "dp" else factor) * LAW.seconds(exchange)


def records_of(cases: list[Case], noise: float = 0.0, skew: float = 1.0, outcome: str = "ok") -> list[Record]:
    """Every case in each process; the ranks are `skew` apart in steps without exchange."""
    random = np.random.default_rng(0)
    found = []
    for process in range(PROCESSES):
        for case in cases:
            seconds = seconds_of(case) * float(np.exp(noise * random.standard_normal()))
            p, details = case.parameters, {}
            if case.operator == "data_parallel" and p.exchange in ("ddp", "after"):
                details = {"buckets": buckets_of(p), "wire_bytes": p.exchanges * p.gradient_bytes}
            own = [seconds / skew, seconds] if getattr(p, "exchange", "") == "none" else [seconds] * 2
            time = float(np.mean(own))
            found.append(
                Record(
                    run_id="made-up",
                    kind="timing",
                    case=case.to_json(),
                    case_id=case.case_id,
                    process=process,
                    position=len(found),
                    started_at="",
                    outcome=outcome,
                    probe="data_parallel",
                    metrics={"time": Metric("s", time, time, time, time, time, [time])} if outcome == "ok" else {},
                    work={"flop": 0, "bytes": 0},
                    kernel={"details": details},
                    sampling={"rank_samples_s": [[each] * 3 for each in own]},
                    quality={"converged": True},
                )
            )
    return found


def told(findings: Findings, words: str) -> str:
    (sentence,) = [sentence for sentence in findings.sentences if words in sentence]
    return sentence


def test_the_probe_can_be_found_and_every_profile_has_cases():
    assert find_probe("data_parallel").name == "data_parallel"
    counts = [len(PROBE.cases(profile, CPU)) for profile in PROFILES]
    assert counts[0] == 2
    assert counts == sorted(counts)


def test_steps_stand_beside_one_without_exchange_and_options_beside_the_usual():
    cases = PROBE.cases("full", CPU)
    steps = [case.parameters for case in cases if case.operator == "data_parallel"]
    for p in steps:
        assert any(q.exchange == "none" and (q.layers, q.ranks) == (p.layers, p.ranks) for q in steps)
        if not p.no_sync:
            assert replace(p, no_sync=True) in steps
        if p.static_graph:
            assert replace(p, static_graph=False) in steps
    assert {p.ranks for p in steps} == {2, 4}
    assert len({case.case_id for case in cases}) == len(cases)


def test_a_gpu_has_data_parallel_and_nccl_without_direct_copies_beside():
    axes = DataParallelAxes(
        ("nccl",), (4,), (4096,), (2,), (128,), (1,), ("none", "ddp", "dp"), (Sizes.parse("25MiB"),)
    )
    cases = PROBE.sweep(axes)
    assert [case.implementation for case in cases] == ["nccl", "nccl", "dp"]
    for case in cases:
        case.validate()


def test_under_a_launcher_its_ranks_are_those_there_are(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "a", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert PROBE.axes("quick", CPU).ranks == (3,)
    with pytest.raises(UserError, match="ranks=2 was asked for, but the launcher started 3"):
        PROBE.sweep(AXES)


@pytest.mark.parametrize(
    ("axis", "sentence"),
    [
        ({"exchange": "magic"}, "choose from ddp"),
        ({"bucket": "many"}, "is not a size"),
        ({"layers": "0"}, "layers of at least 1"),
        ({"static_graph": "perhaps"}, "write true or false"),
        ({"exchange": "dp"}, "drives GPUs, but only gloo"),
    ],
)
def test_an_axis_that_cannot_be_says_so(axis, sentence):
    with pytest.raises(UserError, match=sentence):
        PROBE.cases("standard", CPU, axis)


def test_the_law_is_found_in_steps_that_follow_it():
    axes = replace(AXES, layers=(4, 8), all_reduce=(Sizes(2**16, 2**25, 2),))
    findings = explain(records_of(PROBE.sweep(axes), noise=0.02))
    sentence = told(findings, "Law on 2 ranks over gloo")
    assert "within the 10% wanted" in sentence
    (table,) = findings.tables
    place = table.columns.index("law ms")
    assert [row[place] == "-" for row in table.rows] == [row[1] == "none" for row in table.rows]
    (figure,) = findings.figures
    assert [len(panel.series) for panel in figure.rows[0]] == [3, 3]


def test_ranks_wait_for_the_last_so_its_time_is_what_the_law_begins_with():
    axes = replace(AXES, layers=(4, 8), all_reduce=(Sizes(2**16, 2**25, 2),))
    sentence = told(explain(records_of(PROBE.sweep(axes), skew=1.5)), "Law on")
    # The time of a step is the mean over ranks, which would leave a fifth of compute unexplained.
    assert "missed by 0.0%" in sentence


def test_without_all_reduces_there_is_no_law_but_everything_else():
    findings = explain(records_of(PROBE.sweep(replace(AXES, all_reduce=()))))
    assert not [sentence for sentence in findings.sentences if sentence.startswith("Law")]
    assert told(findings, "x the step without exchange")


def test_each_claim_of_the_guides_gets_its_verdict():
    findings = explain(records_of(PROBE.sweep(AXES)))
    for words in ("exchanging while backward goes on", "as fast as a single one", "no_sync over 2 micro-batches"):
        assert "; claim holds (" in told(findings, words)
    every = [case.parameters for case in PROBE.sweep(AXES) if case.operator == "data_parallel"]
    assert f"In all {PROCESSES * len(every)} visits the gradients" in told(findings, "a single process")


def test_on_gpus_dp_and_slow_links_stand_beside_ddp():
    axes = replace(
        PROBE.axes("standard", CPU),
        implementation=("nccl",),
        ranks=(2,),
        exchange=("none", "ddp", "dp"),
        peer_to_peer=tuple(type(AXES.static_graph[0])(each) for each in (True, False)),
        all_reduce=(),
    )
    findings = explain(records_of(PROBE.sweep(axes)))
    sentence = told(findings, "over NCCL, float32, DDP is ")
    assert "claim holds (DDP is typically faster than DP" in sentence
    assert "takes 1.30 [1.30, 1.30] x the time with them; claim holds" in told(findings, "DDP without direct copies")
    # 1.2 times a single bucket is longer than 1.3 times the best of several.
    assert "; claim does not hold here" in told(findings, "DP with direct copies is 0.9")


def test_what_a_rank_sends_is_told_in_bytes():
    sentence = told(explain(records_of(PROBE.sweep(AXES))), "x the step without exchange")
    assert "each rank sends 12.6 MB in" in sentence


def test_records_of_nothing_say_nothing():
    assert explain([]) == Findings()
    failed = records_of(PROBE.sweep(AXES), outcome="failed")
    assert explain(failed) == Findings()
