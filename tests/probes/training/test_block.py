"""The block probe: its cases, and rates that are told of made-up times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.operators import find_operator
from pyperf_suite.operators.training.step_flop import asked_flop
from pyperf_suite.probes.training.block import Block
from pyperf_suite.runner.record import Metric, Record

CPU, GPU = Device("cpu"), Device("cuda")


def records(seconds_of, profile="standard", processes=3, **overrides):
    """One for each case and process, whose time is what `seconds_of(case)` says."""
    made = []
    for case in Block().cases(profile, CPU, overrides):
        for process in range(processes):
            seconds = seconds_of(case) * (1 + 0.001 * process)
            fields = {
                "kind": "timing",
                "outcome": "ok",
                "case": case.to_json(),
                "case_id": case.case_id,
                "process": process,
                "work": {"flop": find_operator(case.operator).work(case.parameters).flop, "bytes": 0},
                "kernel": {"name": "step", "path": "eager", "details": {"parameters": 789_760}},
                "quality": {"converged": True},
                "metrics": {"time": Metric("s", *5 * (seconds,), [seconds])},
            }
            made.append(Record(**{**dict.fromkeys(Record.__dataclass_fields__), **fields}))
    return made


def at_one_gflop(case):
    """Everything at 1 GFLOP/s, and what computes nothing in a millisecond."""
    p = case.parameters
    flop = asked_flop(p) if case.operator == "training_step" else find_operator(case.operator).work(p).flop
    return (flop or 1e6) / 1e9


def test_steps_as_fast_as_the_product_use_all_of_it():
    table = Block().findings(records(at_one_gflop)).tables[0]
    plain = [row for row in table.rows if "checkpointing" not in row[0]]
    assert len(plain) == 2
    assert all(row[6].startswith("100.0 ") for row in plain)


def test_what_is_computed_again_is_in_the_hardwares_share_alone():
    table = Block().findings(records(at_one_gflop)).tables[0]
    mfu, hfu = next((row[6], row[7]) for row in table.rows if "checkpointing" in row[0])
    assert float(mfu.split()[0]) == pytest.approx(100.0, abs=0.1)
    assert 110 < float(hfu.split()[0]) < 134


def test_a_slow_part_is_named():
    def slow_norm(case):
        is_norm = case.operator == "block_part" and case.parameters.part == "norm"
        return 10.0 if is_norm else at_one_gflop(case)

    sentences = Block().findings(records(slow_norm)).sentences
    assert any("norm alone 9" in sentence for sentence in sentences)


def test_every_profile_has_cases_that_can_be_on_both_kinds_of_device():
    for profile in ("quick", "standard", "full"):
        for device in (CPU, GPU):
            assert Block().cases(profile, device)


def test_compiled_steps_stand_beside_eager_ones():
    cases = Block().cases("quick", CPU, {"compiled": "no,yes"})
    steps = [case.parameters for case in cases if case.operator == "training_step"]
    assert {replace(p, compiled=False) for p in steps} == {p for p in steps if not p.compiled}
    assert len(steps) == 2


@pytest.mark.parametrize("overrides", [{"model": "bert"}, {"compiled": "maybe"}, {"part": "soul"}])
def test_a_word_that_is_none_says_which_there_are(overrides):
    with pytest.raises(UserError, match="choose from"):
        Block().cases("standard", CPU, overrides)


def test_parts_are_timed_of_every_block_that_is_asked_for():
    cases = Block().cases("standard", CPU, {"hidden": "64,128", "seq": "32,64"})
    parts = {(c.parameters.hidden, c.parameters.seq) for c in cases if c.operator == "block_part"}
    assert parts == {(64, 32), (64, 64), (128, 32), (128, 64)}


def test_dropped_activations_alone_are_measured_where_nothing_else_is_asked_for():
    cases = Block().cases("quick", CPU, {"checkpointing": "every:1"})
    assert [str(c.parameters.checkpointing) for c in cases if c.operator == "training_step"] == ["every:1"]


def test_of_a_single_part_no_share_is_told():
    said = Block().findings(records(at_one_gflop, part="norm")).sentences
    assert not [sentence for sentence in said if "Forward of the parts" in sentence]


@pytest.mark.parametrize("overrides", [{"layers": "0"}, {"vocab": "-1"}])
def test_a_size_that_only_the_other_model_has_is_refused_too(overrides):
    with pytest.raises(UserError, match="is at least"):
        Block().cases("quick", CPU, overrides)


def test_the_guides_formula_is_judged_once_for_steps_of_the_same_flops():
    sentences = Block().findings(records(at_one_gflop, compiled="no,yes")).sentences
    assert sum("The guide's formula" in sentence for sentence in sentences) == 3
    assert sum("With torch.compile a step runs" in sentence for sentence in sentences) == 2


def test_nothing_is_said_of_no_records():
    assert Block().findings([]).tables == ()
