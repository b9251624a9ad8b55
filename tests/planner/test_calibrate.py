"""A run on one's own machine corrects the shipped law as far as that helps on held-out sites, and never further."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.hardware.devices import Device
from pyperf_suite.planner import calibrate
from pyperf_suite.planner.calibrate import (
    FILE,
    calibrated,
    corrections,
    error_percent,
    folds,
)
from pyperf_suite.planner.laws.attention import attention_time
from pyperf_suite.planner.laws.calibration import (
    POOLED,
    correction,
    load_calibration,
    shipped_calibration,
)
from pyperf_suite.planner.laws.gemm import GemmLaw, MenuCoefficients, gemm_time
from pyperf_suite.planner.probes.calibration import PROBE
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.workloads import find_workload
from tests.commands import invoke
from tests.records import a_journal, a_record, records
from tools.fit.gemm import gemm_tables

H200 = find_gpu("H200")
IDENTITY = {"kind": "cuda", "model": "NVIDIA H200", "multiprocessors": 132}
CASES = PROBE.cases("quick", Device("cuda"))
RUN = "20260101T000000Z-0000"
PRODUCTS = [case for case in CASES if case.operator == "matmul"]


def law_s(case: Case) -> float:
    """The made-up law: 500 TFLOP/s, and a start."""
    return 5e-6 + find_workload(case.operator).work(case.parameters).flop / 500e12


def machine(factor: Callable[[Case], float], cases: Sequence[Case] = CASES) -> list[Record]:
    """Records of a machine on which the law is off by a factor."""
    return records(cases, lambda case: law_s(case) * factor(case), processes=1, probe="calibration", identity=IDENTITY)


@pytest.fixture(autouse=True)
def made_up_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibrate, "predicted_seconds", lambda spec, cases: np.array([law_s(case) for case in cases]))


def test_a_machine_that_is_slower_throughout_is_found_and_its_error_held_out() -> None:
    attention, gemm = corrections(H200, machine(lambda case: 1.25), "made up")
    assert (attention.law, gemm.law) == ("attention_bf16", "gemm_bf16")
    for each in (attention, gemm):
        assert each.before.mape == pytest.approx(20)
        assert each.after.mape < 0.01
        assert "whole sites held out" in each.after.how
    own = calibrated(H200, [attention, gemm]).blocks
    assert "gemm_bf16.trtllm" in own, "shipped blocks stay"
    assert own["gemm_bf16_here"].origin == "made up"
    assert own["gemm_bf16_here"].held_out["sites"] == len({(c.parameters.n, c.parameters.k) for c in PRODUCTS})


def test_where_the_law_already_fits_nothing_is_changed() -> None:
    noise = np.random.default_rng(0)
    (gemm,) = corrections(H200, machine(lambda case: float(np.exp(noise.normal(0, 0.05))), PRODUCTS), "made up")
    assert gemm.block is None or gemm.after.mape < gemm.before.mape
    (exact,) = corrections(H200, machine(lambda case: 1.0, PRODUCTS), "made up")
    assert exact.block is None
    assert "gemm_bf16_here" not in calibrated(H200, [exact]).blocks


def test_misaligned_sizes_and_other_peoples_kernels_take_no_part() -> None:
    odd = [replace(case, parameters=replace(case.parameters, n=case.parameters.n + 1)) for case in PRODUCTS]
    ours = [replace(case, implementation="triton") for case in PRODUCTS]
    with pytest.raises(UserError, match="at least 8 sizes are needed to calibrate, but there are none"):
        corrections(H200, machine(lambda case: 1.25, [*odd, *ours]), "made up")
    with pytest.raises(UserError, match="there are 5 of gemm_bf16"):
        corrections(H200, machine(lambda case: 1.0, PRODUCTS[:5]), "made up")


def test_the_command_keeps_a_calibration_with_the_machines_runs_and_states_its_error(tmp_path: Path) -> None:
    run = a_journal(tmp_path / "machine" / RUN, machine(lambda case: 1.25), probes=["calibration"], identity=IDENTITY)
    done = invoke("calibrate", run)
    assert done.exit_code == 0, done.output
    assert "gemm_bf16: an error of 0.0 %" in done.output
    assert "where the law alone has 20.0 %" in done.output
    kept = load_calibration(tmp_path / "machine" / FILE)
    assert kept.gpu == H200.name
    own, shipped = (gemm_time(gpu, 512, 4096, 4096) for gpu in (kept, "H200"))
    assert own.seconds == pytest.approx(1.25 * shipped.seconds)
    assert own.error_percent == kept.blocks["gemm_bf16_here"].held_out["mape"] < shipped.error_percent
    attention = (attention_time(gpu, 1, 2048, 2048, 32, 8, 128).seconds for gpu in (kept, "H200"))
    assert next(attention) == pytest.approx(1.25 * next(attention))


@pytest.mark.parametrize(
    ("identity", "arguments", "sentence"),
    [
        ({"model": "a CPU", "cores": 2}, [], "are of GPUs"),
        ({"model": "something else"}, [], "are of GPUs"),
        (IDENTITY | {"model": "Abacus 9000"}, [], "say with --gpu which known one it is like"),
        # Another known GPU stands in for one that the catalogue lacks.
        (IDENTITY | {"model": "Abacus 9000"}, ["--gpu", "h200", "--output", "/dev/null/x"], "cannot be written"),
    ],
)
def test_what_cannot_be_calibrated_ends_in_one_sentence_and_exit_code_2(
    tmp_path: Path, identity: dict[str, object], arguments: list[str], sentence: str
) -> None:
    run = a_journal(tmp_path / RUN, machine(lambda case: 1.25), probes=["calibration"], identity=identity)
    done = invoke("calibrate", run, *arguments)
    assert done.exit_code == 2
    assert sentence in done.output
    assert "Traceback" not in done.output
    none = invoke("calibrate", "--results", str(tmp_path / "none"), "--device", "cpu")
    assert (none.exit_code, "`pyperf-suite run calibration`" in none.output) == (2, True)


@pytest.mark.parametrize("gpu", ["H100", "H200", "L40S"])
def test_seventy_products_of_a_gpu_bring_a_transferred_law_nearer_to_the_rest_of_its_table(
    measured_tables: Path, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The law pooled over other GPUs, corrected by rows near those that the probe measures, judged on all others."""
    (table,) = (
        each
        for each in gemm_tables(measured_tables)
        if (each.gpu, each.dtype, each.library) == (find_gpu(gpu), "bf16", "trtllm")
    )
    logs = np.log([table.m, table.n, table.k])
    rows = {
        int(np.abs(logs - np.log([[p.m], [p.n], [p.k]])).sum(axis=0).argmin()): case
        for case in PRODUCTS
        for p in [case.parameters]
    }
    cases = [
        replace(case, parameters=replace(case.parameters, m=int(table.m[r]), n=int(table.n[r]), k=int(table.k[r])))
        for r, case in rows.items()
    ]
    block = shipped_calibration(POOLED).block("gemm_bf16.trtllm")
    law = GemmLaw(table.gpu, "bf16", "trtllm", MenuCoefficients.from_arrays(block.arrays), None, block)

    def pooled(spec: object, requested: Sequence[Case]) -> np.ndarray:
        return law.seconds(*(np.array([float(getattr(c.parameters, size)) for c in requested]) for size in "mnk"))

    monkeypatch.setattr(calibrate, "predicted_seconds", pooled)
    (corrected_law,) = corrections(
        table.gpu, [a_record(c, table.seconds[r]) for r, c in zip(rows, cases, strict=True)], "rows"
    )
    assert corrected_law.block is not None
    assert corrected_law.after.mape < corrected_law.before.mape
    rest = (table.m >= 128) & (table.n >= 1024) & (table.k >= 1024) & ~np.isin(np.arange(table.m.size), list(rows))
    m, n, k = (size[rest].astype(float) for size in (table.m, table.n, table.k))
    alone = law.seconds(m, n, k)
    corrected = alone * correction(corrected_law.block, {"m": m, "n": n, "k": k})
    assert (
        error_percent(corrected, table.seconds[rest]).mean() < 0.85 * error_percent(alone, table.seconds[rest]).mean()
    )


@given(st.lists(st.integers(0, 20), min_size=2, max_size=60).filter(lambda sites: len(set(sites)) > 1))
def test_every_row_is_held_out_once_and_its_whole_site_with_it(sites: list[int]) -> None:
    masks = list(folds(sites))
    assert np.array_equal(masks, list(folds(sites)))
    assert np.sum(masks, axis=0).tolist() == [1] * len(sites)
    for mask in masks:
        held_out = set(np.array(sites)[mask])
        assert held_out.isdisjoint(np.array(sites)[~mask])
    with pytest.raises(ValueError, match="at least two sites"):
        list(folds([7, 7, 7]))
