"""The precision probe makes the guide's table again: it judges a made-up machine by what it was made with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators.training.precision_step import PrecisionStep, PrecisionStepParameters
from pyperf_suite.probes.training.precision import Precision, PrecisionAxes
from pyperf_suite.render.picture import draw
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.findings import Findings

PROBE = Precision()
CPU = Device("cpu")
MB = 1_000_000
WEIGHTS = 10 * MB


def three_times_as_fast(p: PrecisionStepParameters, process: int) -> float:
    """A sequence takes 9 ms in float32; casts of all weights take 1 ms."""
    fast = {"float32": 1, "autocast_bfloat16": 3, "bfloat16": 4}[p.precision]
    return p.micro_batches * p.batch * 9e-3 / fast + casts(p) * 1e-3


def casts(p: PrecisionStepParameters) -> int:
    if not p.precision.startswith("autocast_"):
        return 0
    return 1 if p.cast_cache == "nested" else p.micro_batches


@dataclass(frozen=True)
class Machine:
    """A sequence keeps 2 MB in float32, `share` of it in autocast and half of it in bfloat16."""

    seconds: Callable[[PrecisionStepParameters, int], float] = three_times_as_fast
    share: float = 0.6
    casts: Callable[[PrecisionStepParameters], int] = casts
    peak: bool = False

    def records(self, cases: list[Case], processes: int = 3) -> list[Record]:
        return [self.record(case, process) for process in range(processes) for case in cases]

    def record(self, case: Case, process: int) -> Record:
        p = case.parameters
        cast = p.precision.startswith("autocast_")
        weights = WEIGHTS // 2 if p.precision == "bfloat16" else WEIGHTS
        share = self.share if cast else weights / WEIGHTS
        seen = {
            "activations": 2 * MB * p.batch * share,
            "weight_copies": WEIGHTS // 2 if cast else 0,
            "weights": weights,
            "gradients": weights,
            "casts": self.casts(p),
            "cast": self.casts(p) * WEIGHTS // 2,
        } | ({"peak": 99 * MB} if self.peak else {})
        metrics = {name: exactly("B", value) for name, value in seen.items()}
        return Record(
            run_id="made-up",
            kind="timing",
            case=case.to_json(),
            case_id=case.case_id,
            process=process,
            position=0,
            started_at="",
            outcome="ok",
            probe="precision",
            metrics=metrics | {"time": exactly("s", self.seconds(p, process))},
            work={"flop": PrecisionStep().work(p).flop, "bytes": 0},
            quality={"converged": True},
        )


def exactly(unit: str, value: float) -> Metric:
    return Metric(unit, value, value, value, value, value, [value])


def axes(**changed: Any) -> PrecisionAxes:
    return replace(PROBE.axes("standard", CPU), **changed)


def findings(machine: Machine | None = None, **changed: Any) -> Findings:
    return PROBE.findings((machine or Machine()).records(PROBE.sweep(axes(**changed))))


def the_one(words: str, machine: Machine | None = None, **changed: Any) -> str:
    (said,) = [said for said in findings(machine, **changed).sentences if words in said]
    return said


@pytest.mark.parametrize("device", [CPU, Device("cuda")])
@pytest.mark.parametrize("profile", PROFILES)
def test_every_profile_has_cases_that_can_be(profile: str, device: Device) -> None:
    cases = PROBE.sweep(PROBE.axes(profile, device))
    assert cases
    for case in cases:
        PrecisionStep().validate(case.parameters)


def test_a_quick_look_takes_few_cases() -> None:
    assert [case.parameters.precision for case in PROBE.cases("quick", CPU)] == ["float32", "autocast_bfloat16"]


@pytest.mark.parametrize("device", [CPU, Device("cuda")])
def test_of_the_unaligned_model_no_dimension_is_a_multiple_of_8(device: Device) -> None:
    chosen = PROBE.axes("standard", device)
    shapes = [case.parameters for case in PROBE.sweep(chosen)]
    odd = [p for p in shapes if p.hidden == chosen.unaligned_hidden[0]]
    assert {p.precision for p in odd} == {"float32", "autocast_bfloat16"}
    assert not [p for p in odd if not all(n % 8 for n in (p.hidden, p.hidden // p.heads, p.width, p.vocab))]
    assert all(p.width % 8 == p.hidden % 8 == p.vocab % 8 == 0 for p in shapes if p not in odd)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"precision": ("int3",)}, "precision=int3 was asked for: choose from float32"),
        ({"cast_cache": ("always",)}, "choose from iteration, nested, off"),
        ({"batch": (0,)}, "batch=0 was asked for, but batch is at least 1"),
        ({"vocab": (-1,)}, "vocab=-1 was asked for, but vocab is at least 0"),
    ],
)
def test_what_no_step_has_is_refused_in_one_sentence(changed: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        axes(**changed)


def test_twice_as_fast_or_more_is_what_the_guide_claims() -> None:
    said = the_one("autocast_bfloat16 is 2.9")
    # 16 sequences: 144 ms beside 48 and one for the casts.
    assert "is 2.94 [2.94, 2.94] x as fast as float32 at batch 16 (1 x 256 in 4 heads, vocab 512, seq 32)" in said
    assert "; claim holds (mixed precision trains twice as fast" in said


def test_autocast_that_is_no_faster_contradicts_the_guide() -> None:
    said = the_one("mixed precision trains", Machine(lambda p, process: 1e-3))
    assert "1.00 [1.00, 1.00] x as fast" in said
    assert "claim does not hold here" in said


def test_pure_half_precision_is_set_beside_autocast_without_a_claim() -> None:
    said = the_one("bfloat16 is 4.00")
    # States 40 MB to 20, copies 5 to 0, activations 0.6 x 32 to 16.
    assert said.endswith("1.36 [1.36, 1.36] x as fast as autocast_bfloat16 and needs 28.2 MB less.")


def test_memory_is_saved_by_activations_alone_and_from_a_batch_on() -> None:
    said = the_one("autocast_bfloat16 saves")
    assert (
        "saves -4.2 MB at batch 1, -1.8 MB at batch 4, 7.8 MB at batch 16: 0.8 MB for each sequence less 5 MB" in said
    )
    assert "so it needs more memory than float32 up to batch 6; claim holds (the bigger the batch" in said
    share = the_one("x the activations")
    assert share.startswith("autocast_bfloat16 keeps 0.60 x the activations of float32 at batch 16")
    assert "claim holds" in share


def test_activations_that_do_not_shrink_save_nothing() -> None:
    machine = Machine(share=1.0)
    assert "claim does not hold here" in the_one("x the activations", machine)
    said = the_one("autocast_bfloat16 saves", machine)
    assert said.startswith(
        "autocast_bfloat16 saves -5 MB at batch 1, -5 MB at batch 4, -5 MB at batch 16; claim does not"
    )


def test_odd_dimensions_are_set_beside_multiples_of_8_by_their_flops() -> None:
    def odd_is_slow(p: PrecisionStepParameters, process: int) -> float:
        rate = 1e12 if p.precision != "float32" and p.hidden % 8 == 0 else 5e11
        return PrecisionStep().work(p).flop / rate

    said = the_one("multiples of 8 compute", Machine(odd_is_slow))
    assert said.startswith("autocast_bfloat16 at batch 4 is 2.00 [2.00, 2.00] x as fast as float32 with 1 x 256")
    assert "and 1.00 [1.00, 1.00] x with 1 x 255 in 5 heads" in said
    assert "multiples of 8 compute 2.00 [2.00, 2.00] x the FLOPs a second; claim holds" in said


def test_casts_are_counted_in_each_form_of_the_cache() -> None:
    said = the_one("casts of weights a step")
    assert said.startswith("autocast_bfloat16, 4 micro-batches of 1 (1 x 256")
    assert "1 casts of weights a step in one context around it, 4 in one around each forward and 4 without" in said
    assert "claim holds" in said
    # 4 x 3 ms and one cast, or four.
    assert "1.23 [1.23, 1.23] x as fast as without cache; claim holds" in the_one("as without cache")
    assert "1.23 [1.23, 1.23] x as fast as in a context around each forward pass" in the_one("as in a context")


def test_a_cache_that_is_dropped_too_early_contradicts_the_guide() -> None:
    dropped = Machine(casts=lambda p: p.micro_batches if p.precision.startswith("autocast_") else 0)
    assert "claim does not hold here" in the_one("casts of weights a step", dropped)


def test_the_guides_table_stands_beside_the_measured_one_and_not_in_it() -> None:
    steps, cached, guide = findings().tables
    assert {row[1] for row in steps.rows} == {"1", "4", "16"}
    assert [row[2] for row in cached.rows] == ["iteration", "nested", "off"]
    assert [row[-1] for row in guide.rows] == ["84", "178", "620", "1976"]
    saved = {(row[1], row[2]): row[-2] for row in steps.rows if row[0].startswith("1 x 256")}
    assert saved["16", "autocast_bfloat16"] == "7.8"
    assert saved["16", "float32"] == "-"


def test_a_gpus_peak_is_told_where_it_was_measured() -> None:
    assert {row[-1] for row in findings(Machine(peak=True)).tables[0].rows} == {"99"}
    assert {row[-1] for row in findings().tables[0].rows} == {"-"}


def test_enough_batches_are_drawn(tmp_path) -> None:
    memory, speed = (figure.rows[0][0] for figure in findings().figures)
    assert [(series.label, list(series.y)) for series in memory.series] == [
        ("float32", [42, 48, 72]),
        ("autocast_bfloat16", [46.2, 49.8, 64.2]),
    ]
    assert [(series.label, len(series.x)) for series in speed.series] == [("autocast_bfloat16", 3)]
    for figure in findings().figures:
        assert draw(figure, tmp_path).is_file()


def test_two_batches_or_one_precision_are_not_drawn() -> None:
    assert findings(batch=(1, 4)).figures == ()
    assert findings(precision=("float32",)).figures == ()


def test_findings_do_not_depend_on_the_order_of_visits() -> None:
    records = Machine().records(PROBE.sweep(axes()))
    assert PROBE.findings(records[::-1]) == PROBE.findings(records)


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "autocast_bfloat16"])
def test_a_single_precision_has_nothing_beside_it(precision: str) -> None:
    chosen = findings(precision=(precision,), beside=(), cast_cache=("iteration",))
    assert chosen.sentences == ()
    assert {row[2] for row in chosen.tables[0].rows} == {precision}


def test_no_records_say_nothing() -> None:
    assert PROBE.findings([]) == Findings()
