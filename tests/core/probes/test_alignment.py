"""The alignment probe climbs the ladder of divisors, and its findings tell the machine that made the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.findings.data import Findings, Remark
from pyperf_suite.hardware.devices import resolve
from pyperf_suite.kernels.static import INSTRUCTION_CLASSES
from pyperf_suite.probes.alignment import PROBE, AlignmentAxes, Base
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from tests import records as made_up
from tests.records import a_record, lines, remarks

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


def shapes(cases: list[Case], implementation: str) -> set[tuple[int, int, int]]:
    return {(p.m, p.n, p.k) for case in cases if case.implementation == implementation for p in (case.parameters,)}


def test_every_rung_and_offset_stands_beside_the_size_it_would_be_padded_to() -> None:
    cases = sweep(axes(along=("k",), offset=(-3, 0, 17)))
    sizes = {k for _, _, k in shapes(cases, "torch")}
    assert sizes == {960, 1016, 1021, 1022, 1023, 1024, 1041, 1088}
    assert shapes(cases, "torch") == shapes(cases, "native")


def test_only_the_varied_dimension_is_padded_at_each_call() -> None:
    cases = sweep(axes(along=("n",)))
    assert {n for _, n, _ in shapes(cases, "torch_padded")} == {1016, 1022, 1023}
    assert not shapes(sweep(axes(base=(Base.parse("skinny:17x1024x1024"),), along=("n",))), "torch_padded")


def test_a_base_has_the_layout_of_its_part_in_a_network_unless_another_is_asked_for() -> None:
    bases = tuple(Base.parse(f"{part}:64x64x64") for part in ("fprop", "dgrad", "wgrad"))
    own, requested = (sweep(axes(base=bases, layout=(layout,))) for layout in ("own", "TT"))
    assert {case.parameters.layout for case in own} == {"TN", "NN", "NT"}
    assert {case.parameters.layout for case in requested} == {"TT"}


def test_real_life_sizes_come_with_the_sizes_people_pad_them_to() -> None:
    real = ("vocabulary", "ffn", "hidden", "tokens")
    cases = sweep(axes(real=real, ladder=(64,), offset=(0,), span=(1.0,), tokens=(128,)))
    library = shapes(cases, "torch")
    assert {(128, 50257, 256), (128, 50304, 256)} <= library
    assert {(128, 10922, 256), (128, 10944, 256), (128, 11008, 256)} <= library
    assert {(128, 256, 4095), (128, 256, 4096), (128, 256, 4097)} <= library
    assert {(127, 256, 256), (128, 256, 256), (129, 256, 256)} <= library
    assert (128, 50257, 256) in shapes(cases, "torch_padded")
    assert (128, 50257, 256) not in shapes(cases, "native")


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


def test_padding_that_costs_more_at_each_call_than_it_wins_is_only_advised_once() -> None:
    found = findings(lambda case: odd_is_half(case) * (3 if case.parameters.pad_to > 1 else 1), along=("k",))
    verdicts = {row["size"]: row["verdict"] for row in rows(found, "Pad or not", "torch")}
    assert verdicts[1023] == "build it padded, do not pad at each call"
    (calls,) = remarks(found, "winning")
    assert (calls.values["winning"], calls.values["tried"]) == (0, 3)


def vocabulary(seconds: Seconds, **changed: object) -> Remark:
    (advice,) = remarks(findings(seconds, real=("vocabulary",), ladder=(64,), **changed), "known_as")
    return advice


def test_advice_that_noise_explains_is_not_told_and_advice_to_pad_names_what_it_wins() -> None:
    (unclear,) = remarks(
        PROBE.findings(records(sweep(axes(real=("vocabulary",), ladder=(64,))), by_work, noise=0.3)),
        "known_as",
    )
    assert (unclear.values["verdict"], unclear.is_noise) == ("undecided", True)
    padded = vocabulary(lambda case: by_work(case) * (1.0 if case.parameters.padded.n % 64 == 0 else 2.0))
    assert padded.values[padded.effect].value == pytest.approx(2, rel=0.02)


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


def test_one_process_has_the_interval_of_its_own_samples() -> None:
    report = PROBE.findings(records(sweep(axes(along=("k",))), odd_is_half, processes=1, noise=0.0))
    gains = {row["size"]: row["gain if built so"] for row in rows(report, "Pad or not", "torch")}
    assert (gains[1023].processes, gains[1023].low, gains[1023].high) == (
        1,
        pytest.approx(2, rel=0.01),
        gains[1023].value,
    )
    assert [each.kind for each in report.remarks].count("caution") == 1
    assert report.remarks[0].kind == "caution"
    assert not [each for each in findings(odd_is_half, along=("k",)).remarks if each.kind == "caution"]


def test_what_an_implementation_never_takes_is_left_out_unless_nothing_is_left() -> None:
    # The kernel for compute capability 8.0 multiplies in tensor cores, and float32 is not for them.
    mixed = sweep(axes(implementation=("native", "cuda_sm80")))
    assert {case.implementation for case in mixed} == {"native", "torch", "torch_padded"}
    with pytest.raises(UserError, match="workers were requested"):
        PROBE.cases("quick", CPU, {"workers": "4096"})


def test_hints_are_timed_where_our_triton_kernel_is_and_else_read_in_machine_code_of_each_generation() -> None:
    chosen = axes(hints=("own", "all", "odd_a"), along=("n",))
    compiled = [case for case in sweep(chosen) if case.operator == "compiled_kernel"]
    assert [(case.parameters.target, case.parameters.kernel.rpartition("addresses")[2]) for case in compiled] == [
        (target, hints) for target in ("sm_80", "sm_90", "sm_100") for hints in ("", "_hints_odd_a")
    ]
    timed = sweep(replace(chosen, implementation=("cuda_sm80", "triton"), dtype=("bfloat16",), library=(), padded=()))
    assert {(case.implementation, case.parameters.hints) for case in timed} == {
        ("cuda_sm80", ""),
        *(("triton", hints) for hints in ("", "all", "odd_a")),
    }
    for case in (*compiled, *timed):
        case.validate()
    found = PROBE.findings(records([case for case in timed if case.implementation == "triton"], by_work))
    settings = {str(row["implementation, dtype, layout"]) for row in rows(found, "Pad or not")}
    assert {hints for hints in ("all", "odd_a") if any(f" hints={hints}," in each for each in settings)} == {
        "all",
        "odd_a",
    }
    assert len(settings) == 3


def test_a_pipeline_that_is_lost_without_hints_is_named_for_each_target() -> None:
    def kernel(case: Case) -> Record:
        untold = "hints" in case.parameters.kernel
        figures = dict.fromkeys(("registers", "dynamic_shared_memory"), 65536.0 if untold else 131072.0)
        figures |= {f"instructions_{name}": 0.0 for name in (*INSTRUCTION_CLASSES, "all")}
        figures |= {"instructions_LDGSTS": 12.0 if untold else 36.0}
        return a_record(case, None, kind="static", metrics=figures, probe="alignment")

    cases = [case for case in sweep(axes(hints=("all", "odd_a"))) if case.operator == "compiled_kernel"]
    found = PROBE.findings([kernel(case) for case in cases])
    named = [(each.values["target"], each.values["left"], each.values["all"]) for each in found.remarks]
    assert named == [(target, 12, 36) for target in ("sm_100", "sm_80", "sm_90")]
    assert [row["loads"] for row in lines(found, "Our Triton product by")] == ["36 LDGSTS", "12 LDGSTS"] * 3
