"""Acceptance of made-up nodes: healthy parts pass, slow or wrong ones are named, with their causes in order."""

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

from pyperf_suite.findings.rows import rows_of
from pyperf_suite.node.check import CAUTION, FAILED, OK, UNKNOWN, Check, sentences
from pyperf_suite.node.probes import accept
from pyperf_suite.node.probes.accept import sweep
from pyperf_suite.planner.expected_times import expected_times
from pyperf_suite.record.case import Case
from pyperf_suite.record.quantity import Quantity
from pyperf_suite.record.record import Record
from pyperf_suite.render.text import quantity_text, sentence
from tests.node.made_up import CPU, H200, TWO_CORES, cpu_node, gpu_node
from tests.records import a_record

checks_of = partial(accept.checks_of, laws=expected_times)


def bad(records: list[Record], **how: Any) -> dict[tuple[str, str], Check]:
    return {(each.part, each.what): each for each in checks_of(rows_of(records), **how) if each.needs_attention}


def test_a_healthy_node_of_eight_has_every_check_ok():
    checks = checks_of(rows_of(gpu_node()))
    assert {each.verdict for each in checks} == {OK}
    # Each GPU has five rates, clock, throttling and memory; the node has all_reduce, pairs and links.
    assert len(checks) == 8 * 8 + 3
    assert {each.part for each in checks} == {"node", *(f"cuda:{n}" for n in range(8))}


@pytest.mark.parametrize("seed", range(5))
def test_healthy_nodes_are_not_accused_whatever_the_noise(seed):
    assert not bad(gpu_node(seed=seed, noise=0.02))
    assert not bad(cpu_node(seed=seed, noise=0.02))


def test_a_gpu_that_is_slow_by_its_clock_is_named_with_the_clock_first():
    slow = {"before": {}, "after": {"sm_clock_mhz": 795}, "throttle_reasons_seen": ["thermal slowdown by hardware"]}
    found = bad(gpu_node(lambda case, n: 2.2 if n == 3 and case.operator == "matmul" else 1.0, read={3: slow}))
    assert {part for part, _ in found} == {"cuda:3"}
    assert found["cuda:3", "SM clock"].verdict == CAUTION
    assert found["cuda:3", "throttling"].why == "thermal slowdown by hardware"
    burst = found["cuda:3", "bfloat16 products, burst"]
    assert burst.why.startswith("SM clock 795 of 1980 MHz; throttling thermal slowdown by hardware; power limit")
    assert burst.off == pytest.approx(1 / 2.2 - 1, abs=0.05)


@pytest.mark.parametrize(
    ("health", "name", "verdict", "words"),
    [
        ({"uncorrected_errors": 2, "uncorrected": 2}, "memory errors", FAILED, "uncorrected: 2"),
        ({"remapping": "pending", "rows_remapped_uncorrected": 1}, "memory errors", FAILED, "remapping: pending"),
        ({"rows_remapped_corrected": 1}, "memory errors", OK, "rows remapped corrected: 1"),
        ({"default_power_limit_w": 900.0}, "power limit", CAUTION, "below its default of 900 W"),
    ],
)
def test_the_health_of_a_gpu_is_judged(health, name, verdict, words):
    checks = checks_of(rows_of(gpu_node(health={2: health})))
    check = next(each for each in checks if (each.part, each.what) == ("cuda:2", name))
    assert (check.verdict, words in f"{check.found} {check.why}") == (verdict, True)
    assert [each for each in checks if each.needs_attention] == [check] * (verdict != OK)


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n > 2)) for n in range(100)])
def test_links_at_half_their_rate_are_found(seed):
    """On a node whose PCIe link and one pair run so."""
    one, other = sorted(np.random.default_rng(seed).choice(8, 2, replace=False).tolist())
    pairs = ("node", "slowest pair by NV18")
    how = {"seed": seed, "noise": 0.03, "slow_pairs": {(one, other): 2.0}}
    found = bad(gpu_node(lambda case, n: 2.0 if case.operator == "transfer" and n == one else 1.0, **how))
    assert set(found) == {(f"cuda:{one}", "host to GPU"), (f"cuda:{one}", "GPU to host"), pairs}
    assert found[pairs].why.startswith(f"pairs {one}-{other}; ")


@pytest.mark.parametrize("seed", [pytest.param(n, marks=[pytest.mark.slow] * (n > 2)) for n in range(100)])
def test_a_core_that_another_process_keeps_busy_is_found(seed):
    def share(case: Case, n: int) -> float:
        """Time of one busy core of two here: both together multiplied at 0.64 to 0.71 of one core's rate."""
        return 2.8 if case.operator == "matmul" and case.parameters.schedule.workers == 2 else 1.0

    found = bad(cpu_node(share, busy=1.0, seed=seed, noise=0.05))
    assert found["host", "cores that other processes took"].verdict == FAILED
    gain = found["cpu", "2 cores over 1 core"]
    assert gain.why.startswith("cores that other processes took 1.0; ")


def test_time_that_the_hypervisor_took_is_told_apart():
    assert list(bad(cpu_node(stolen=0.4))) == [("host", "cores that the hypervisor took")]


def test_what_fails_is_not_ok_what_cannot_run_is_not_measured_and_an_unknown_gpu_has_no_peer():
    records = cpu_node()
    case = next(sweep(TWO_CORES))
    records = [each for each in records if each.case_id != case.case_id]
    for outcome, verdict in (("failed", FAILED), ("unsupported", UNKNOWN)):
        checks = checks_of(rows_of([*records, a_record(case, outcome=outcome, identity=CPU)]))
        (check,) = (each for each in checks if each.what == "float32 products, burst, 1 core")
        assert (check.verdict, check.why) == (verdict, "a made-up reason")
    records = [each for each in gpu_node() if each.case["operator"] == "matmul"]
    unknown = [Record(**{**vars(each), "identity": H200 | {"model": "NVIDIA X9000"}}) for each in records]
    products = [each for each in checks_of(rows_of(unknown)) if "products" in each.what]
    assert {each.verdict for each in products} == {UNKNOWN}


@pytest.mark.parametrize(("value", "off"), [(0.63, ", 68 % low"), (2.5, "")])
def test_the_threshold_that_a_check_failed_is_printed_and_by_how_much_it_is_low(value, off):
    expected = Quantity(2.0, "x", 1.0, math.inf)
    (said,) = sentences([Check("cpu", "2 cores over 1 core", Quantity(value, "x"), expected, CAUTION, "heat")])
    words = f"cpu, 2 cores over 1 core: {value:.2f} ×{off}, expected 2.00 ×, at least 1.00 ×: heat"
    assert sentence(said).startswith(words)


def test_a_rate_of_one_trial_has_no_interval():
    once, often = (checks_of(rows_of([r for r in cpu_node() if r.process < n])) for n in (1, 3))
    rates = [each.found for each in once if each.rate_unit]
    assert rates
    assert not any("[" in quantity_text(each) for each in rates)
    assert all("[" in quantity_text(each.found) for each in often if each.rate_unit)
