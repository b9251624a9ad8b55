"""Patterns named in made-up samples, with no process: each one, and beside it the healthy job without it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.node.watch.patterns import after_start, growth, judge
from pyperf_suite.node.watch.samples import RankSample, Sample
from pyperf_suite.render.text import sentence

GIB = 1 << 30
RANK = RankSample(
    rank=0,
    pid=10,
    cores=2.0,
    wanted_cores=2.0,
    main_share=0.97,
    queue_share=0.02,
    busiest_thread="python",
    busiest_share=0.97,
    waits={"running": 1.0},
    loaders=0,
    loader_busy=0.0,
    loader_disk=0.0,
    read_bytes_per_s=0.0,
    write_bytes_per_s=0.0,
    memory_bytes=GIB,
)
IDLE = {"cores": 0.2, "wanted_cores": 0.2, "main_share": 0.2, "queue_share": 0.0, "busiest_share": 0.2}


def gpu(**changes) -> dict:
    """A busy GPU that is well."""
    usual = {"rank": 0, "uuid": "GPU-0", "utilization": 0.97, "sm_clock_mhz": 1755, "maximum_sm_clock_mhz": 1980}
    memory = {"memory_used_bytes": 40 * GIB, "memory_total_bytes": 80 * GIB, "temperature_celsius": 61}
    power = {"power_w": 600.0, "power_limit_w": 700.0, "default_power_limit_w": 700.0}
    return {**usual, **memory, **power, **changes}


def samples(*ranks: RankSample, gpus: tuple[dict, ...] = (), count: int = 40, **more) -> list[Sample]:
    """Return `count` seconds of the same."""
    usual = {"allowed_cores": 8, "memory_free_bytes": 50 * GIB, "memory_limit_bytes": 100 * GIB}
    return [Sample(float(k + 1), 1.0, ranks or (RANK,), gpus, **{**usual, **more}) for k in range(count)]


def test_a_rank_that_is_ready_and_has_no_cpu_is_told_who_has_it() -> None:
    starved = replace(RANK, main_share=0.3, queue_share=0.66, cores=0.3, wanted_cores=0.96)
    (found,) = judge(samples(starved, busiest_other="python (process 123)"))
    assert (found.name, found.rank) == ("no CPU", 0)
    assert sentence(found.evidence).endswith("in 66 % of its time: others have it, the most python (process 123)")
    assert "torch.compile" not in found.advice
    assert names(judge(samples(replace(starved, main_share=0.86, queue_share=0.1)))) == {("cpu", 0)}


def test_a_main_thread_that_sleeps_until_a_timer_ends_is_named() -> None:
    slept = {**IDLE, "waits": {"timer": 0.7, "running": 0.3}}
    assert names(judge(samples(*on_ranks(slept)))) == {("timer", 0)}
    assert not judge(samples(*on_ranks({**slept, "waits": {"timer": 0.15, "running": 0.85}})))


def names(patterns) -> set[tuple[str, int | None]]:
    return {(each.name, each.rank) for each in patterns}


def on_ranks(*changes: dict) -> list[RankSample]:
    return [replace(RANK, rank=rank, **change) for rank, change in enumerate(changes)]


HUNGRY = {**IDLE, "waits": {"pipe": 0.7, "running": 0.3}, "loaders": 2}
DISK = {**IDLE, "waits": {"disk": 0.6, "running": 0.4}}
WAITS = {**IDLE, "waits": {"thread": 0.7, "running": 0.3}}
ONE_THREAD = {"cores": 1.0, "wanted_cores": 1.0}


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (samples(), set()),
        (samples(*on_ranks({**HUNGRY, "loader_busy": 0.97})), {("data", 0)}),
        (samples(*on_ranks({**HUNGRY, "loader_busy": 0.97, "waits": {}})), {("data", 0)}),  # not known what it waits in
        # The loaders wait as well, for what they read: the main thread has nothing all the same.
        (samples(*on_ranks({**HUNGRY, "loader_busy": 0.3})), {("data", 0)}),
        (samples(*on_ranks({"loaders": 2, "loader_busy": 0.97})), set()),
        # Loaders with time left, a main thread that waits for its GPU.
        (samples(*on_ranks({**WAITS, "loaders": 2, "loader_busy": 0.3}), gpus=(gpu(),)), set()),
        (
            samples(*on_ranks({**WAITS, "loaders": 2, "loader_busy": 0.97}), gpus=(gpu(utilization=0.4),)),
            {("data", 0)},
        ),
        # A process that waits for those it started, as torch.multiprocessing.spawn's, trains nothing.
        (samples(*on_ranks({**HUNGRY, "loader_busy": 1.0, "cores": 0.0})), set()),
        (samples(*on_ranks(DISK)), {("disk", 0)}),
        (samples(*on_ranks({}, WAITS, WAITS)), {("straggler", 0)}),
        (samples(*on_ranks({}, {}, {"main_share": 0.9})), set()),
        # The rank that waits for data is what the others wait for.
        (samples(*on_ranks({**HUNGRY, "loader_busy": 0.97}, WAITS)), {("data", 0)}),
        (samples(*on_ranks(WAITS, WAITS), network_bytes_per_s=1e9), {("network", None)}),
        (samples(*on_ranks(WAITS, WAITS)), set()),  # without a byte over any network
        (samples(*on_ranks(ONE_THREAD)), {("cpu", 0)}),
        (samples(*on_ranks(ONE_THREAD), allowed_cores=1), set()),
        (samples(*on_ranks(ONE_THREAD, ONE_THREAD), allowed_cores=2), set()),
        # Two threads that share one CPU with others' processes are still two.
        (samples(*on_ranks({"cores": 1.0})), set()),
        (samples(gpus=(gpu(utilization=0.5),)), {("cpu", 0)}),
        (samples(gpus=(gpu(),)), set()),
        (samples(gpus=(gpu(sm_activity=0.2, tensor_activity=0.03),)), {("idle SMs", 0)}),
        (samples(gpus=(gpu(sm_activity=0.2),)), {("idle SMs", 0)}),
        (samples(gpus=(gpu(sm_activity=0.85, tensor_activity=0.5),)), set()),
        (samples(gpus=(gpu(sm_activity=0.2, utilization=0.3),)), {("cpu", 0)}),  # launches, not what they launch
        (samples(gpus=(gpu(throttle_reasons=("thermal slowdown by hardware",)),)), {("throttled", 0)}),
        (samples(gpus=(gpu(throttle_reasons=("power cap",)),)), set()),
        (samples(gpus=(gpu(throttle_reasons=("power cap",), power_limit_w=400.0),)), {("throttled", 0)}),
        (samples(throttled_share=0.4), {("throttled", None)}),
        (samples(gpus=(gpu(memory_used_bytes=77 * GIB),)), {("memory limit", 0)}),
        (samples(memory_free_bytes=4 * GIB), {("memory limit", None)}),
    ],
)
def test_a_job_is_named_for_what_it_waits_for(job, expected):
    assert names(judge(job)) == expected


def test_the_start_of_a_job_and_too_few_samples_are_not_judged():
    assert judge(samples(*on_ranks({**HUNGRY, "loader_busy": 0.97}), count=4)) == judge([]) == []
    single = [replace(each, started_s=14.0) for each in samples(*on_ranks(ONE_THREAD), count=15)]
    job = [*single, *(replace(each, at_s=each.at_s + 15, started_s=14.0) for each in samples(count=15))]
    assert judge(job) == []
    assert after_start(job)[0].at_s - 1.0 >= 15.0


def test_gpus_that_wait_for_one_take_less_power_and_use_fewer_sms():
    ranks = on_ranks({}, {}, {})
    even = tuple(gpu(rank=rank, uuid=f"GPU-{rank}") for rank in range(3))
    slow = tuple({**each, "power_w": 600.0 if each["rank"] == 1 else 350.0} for each in even)
    low = tuple({**each, "sm_clock_mhz": 1200 if each["rank"] == 2 else 1755} for each in even)
    assert judge(samples(*ranks, gpus=even)) == []
    assert names(judge(samples(*ranks, gpus=slow))) == {("straggler", 1)}
    assert names(judge(samples(*ranks, gpus=low))) == {("straggler", 2)}
    waiting = tuple({**each, "sm_activity": 0.95 if each["rank"] == 1 else 0.2} for each in even)
    [found] = judge(samples(*ranks, gpus=waiting))
    assert (found.name, found.rank, found.evidence.values["pid"]) == ("straggler", 1, RANK.pid)
    similar = tuple({**each, "sm_activity": 0.3, "power_w": 600.0 - each["rank"] * 200} for each in even)
    assert names(judge(samples(*ranks, gpus=similar))) == {("idle SMs", rank) for rank in range(3)}


def test_the_rank_with_the_longest_steps_is_the_straggler():
    job = samples(*on_ranks({}, {}))
    assert names(judge(job, {0: 0.1, 1: 0.12})) == {("straggler", 1)}
    assert judge(job, {0: 0.1, 1: 0.105}) == []


def leaking(per_s: float, count: int = 40) -> list[Sample]:
    return [
        replace(each, ranks=(replace(RANK, memory_bytes=int(GIB + per_s * each.at_s)),))
        for each in samples(count=count)
    ]


def test_steady_growth_is_a_leak_with_its_slope_and_end():
    [found] = judge(leaking(50 * 2**20))
    assert (found.name, found.rank) == ("memory leak", 0)
    assert found.evidence.values["slope"] == "52.4 MB/s"
    assert found.evidence.values["end"] == "17 min"  # 50 GiB at 50 MiB/s
    assert judge(leaking(100.0)) == []
    under_garbage = [GIB + k * 2**25 + (k % 3) * 2**24 for k in range(60)]
    assert growth([float(k) for k in range(60)], under_garbage) == pytest.approx(2**25, rel=0.1)


@pytest.mark.parametrize(
    "sizes",
    [
        [GIB] * 40,
        [GIB + min(k, 20) * 2**26 for k in range(40)],  # a cache that is full
        [GIB + (k % 8) * 2**26 for k in range(40)],  # garbage, collected now and then
        [GIB + (k >= 20) * 2**30 for k in range(40)],  # one step up
        [GIB * (2 - 0.9**k) for k in range(40)],  # levels off
        [GIB] * 3,
    ],
)
def test_what_levels_off_or_comes_and_goes_is_no_leak(sizes):
    assert growth([float(k) for k in range(len(sizes))], sizes) is None
