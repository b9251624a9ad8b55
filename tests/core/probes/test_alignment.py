"""The alignment probe climbs the ladder of divisors, and its findings tell the machine that made the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyperf_suite.findings.data import Findings
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.probes.alignment import PROBE, AlignmentAxes, Base
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from tests import records as made_up
from tests.records import remarks

CPU = resolve("cpu")
Seconds = Callable[[Case], float]


def by_work(case: Case) -> float:
    """A machine to which divisors are nothing."""
    p = case.parameters.padded
    return 2.0 * p.m * p.n * p.k / 100e9


def odd_is_half(case: Case) -> float:
    """A machine on which an odd K halves the speed; padding at each call costs a tenth more."""
    p = case.parameters
    slow = 2.0 if p.padded.k % 2 else 1.0
    return by_work(case) * slow * (1.1 if p.pad_to > 1 else 1.0)


def records(cases: list[Case], seconds: Seconds, processes: int = 3, noise: float = 0.002) -> list[Record]:
    def kernel(case: Case) -> dict[str, str]:
        return {"name": "wide" if case.parameters.n > 1300 else "narrow", "path": "16-byte"}

    return made_up.records(cases, seconds, processes=processes, noise=noise, probe="alignment", kernel=kernel)


def axes(**changed: object) -> AlignmentAxes:
    usual = replace(
        PROBE.axes("quick", CPU),
        base=(Base.parse("fprop:256x1024x1024"),),
        along=("m", "n", "k"),
        ladder=(1, 2, 8, 64),
        workers=(1,),
    )
    return replace(usual, **changed)  # type: ignore[arg-type]


def findings(seconds: Seconds, **changed: object) -> Findings:
    return PROBE.findings(records(sweep(axes(**changed)), seconds))


def sweep(axes: AlignmentAxes) -> list[Case]:
    """A product may be reached from several bases."""
    return list({case.case_id: case for case in PROBE.sweep(axes)}.values())


def rows(findings: Findings, title: str, implementation: str = "") -> list[dict[str, object]]:
    """The lines of a table, those of one implementation if it is named."""
    named = made_up.lines(findings, title)
    return [row for row in named if row["implementation, dtype, layout"].startswith(implementation)]


def test_a_machine_that_halves_odd_k_is_told_to_pad_k_and_nothing_else() -> None:
    report = findings(odd_is_half)
    classes = {(row["along"], row["divides by"]): row for row in rows(report, "Throughput", "torch")}
    assert classes["K", 1]["rate / next aligned"].value == pytest.approx(0.5, rel=0.01)
    assert classes["K", 1]["gain by padding"].value == pytest.approx(2, rel=0.01)
    assert classes["K", 2]["rate / next aligned"].value == pytest.approx(1, rel=0.01)
    assert classes["N", 1]["rate / next aligned"].value == pytest.approx(1, rel=0.01)
    best = next(each for each in remarks(report, "divisor") if each.values["sweep_setting"].startswith("torch"))
    assert (best.values["sweep_name"], best.values["divisor"], best.effect) == ("K", 1, "gain")
    assert best.values["gain"].value == pytest.approx(2, rel=0.01)
    (calls,) = remarks(report, "winning")
    assert (calls.values["winning"], calls.values["tried"]) == (1, 9)
    assert calls.values["gain"].value == pytest.approx(2 / 1.1, rel=0.01)
    verdicts = {(row["M x N x K"], row["size"]): row["verdict"] for row in rows(report, "Pad or not", "torch")}
    assert verdicts.pop(("256 x 1024 x K", 1023)) == "pad, even at each call"
    assert set(verdicts.values()) == {"leave it"}


def test_padding_that_never_wins_at_each_call_is_advised_once_alone_and_has_no_best() -> None:
    found = findings(lambda case: odd_is_half(case) * (3 if case.parameters.pad_to > 1 else 1), along=("k",))
    verdicts = {row["size"]: row["verdict"] for row in rows(found, "Pad or not", "torch")}
    assert verdicts[1023] == "build it padded, do not pad at each call"
    (calls,) = remarks(found, "winning")
    assert (calls.values["winning"], calls.values["tried"]) == (0, 3)
    assert "best" not in calls.template


def test_our_triton_kernel_is_timed_with_and_without_hints_at_a_tile_of_128_bytes_of_k() -> None:
    chosen = axes(hints=("own", "all"), along=("n",), implementation=("cuda_sm80", "triton"), dtype=("bfloat16",))
    timed = {(case.implementation, str(case.parameters.tile), case.parameters.hints) for case in sweep(chosen)}
    assert {case for case in timed if case[2] or case[0] == "triton"} == {
        ("triton", "128x128x64", hints) for hints in ("", "all")
    }


def search(seconds: Seconds, **changed: object) -> tuple[Findings, int]:
    """Ask the probe for more until it asks for nothing new, as a run does; findings and how often it asked."""
    cases = sweep(axes(**changed))
    for rounds in range(20):
        made = records(cases, seconds)
        requested = PROBE.follow_up(made)
        if not requested:
            return PROBE.findings(made), rounds
        assert not {case.case_id for case in requested} & {case.case_id for case in cases}
        cases += requested
    raise AssertionError("the search did not end")


def test_a_cliff_is_closed_in_on_to_the_neighbours_of_its_rung() -> None:
    def another_kernel_above_1300(case: Case) -> float:
        return by_work(case) * (1.4 if case.parameters.n > 1300 else 1.0)

    found, rounds = search(another_kernel_above_1300, along=("n",), span=(1.0, 2.0), implementation=("native",))
    cliffs = rows(found, "Cliffs")
    assert {"1299 -> 1301", "1280 -> 1408"} <= {row["from -> to"] for row in rows(found, "Cliffs", "torch")}
    kernels = {(row["kernel before"], row["kernel after"]) for row in cliffs}
    assert kernels == {("narrow (16-byte)", "wide (16-byte)")}
    widest = remarks(found, "rate")[0]
    assert widest.values["rate"].value == pytest.approx(1 / 1.4, rel=0.02)
    assert widest.values["rate"].value == min(row["rate"].value for row in cliffs)
    assert rounds <= 12


def test_a_size_that_cannot_be_measured_is_not_asked_for_again() -> None:
    measured = records(
        sweep(axes(along=("n",), span=(1.0, 2.0))),
        lambda case: by_work(case) * (2 if case.parameters.n > 1300 else 1),
    )
    requested = PROBE.follow_up(measured)
    failed = [replace(record, outcome="failed") for record in records(requested, by_work)]
    assert requested
    assert PROBE.follow_up(measured + failed) == []
