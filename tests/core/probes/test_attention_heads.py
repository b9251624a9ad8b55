"""The attention probe splits hidden sizes as asked, and its findings tell the machine that made the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.findings.data import Findings
from pyperf_suite.laws.tiled_attention import AttentionLaw, Blocks, HeadSizeLaw, TiledAttention, bucket_of
from pyperf_suite.probes.attention_heads import CAUSES, PROBE, AttentionHeadsAxes
from pyperf_suite.record.case import Case
from pyperf_suite.record.journal import read_journal
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.attention import AttentionParameters
from tests.records import lines, records, remarks

H200 = Path(__file__).parents[3] / "bench_results" / "cuda-nvidia-h200-132sm-140gib"
H200_HEADS = H200 / "20261126T060843Z-9b67" / "records.jsonl"
# Products at 1 TFLOP/s on each slot; a score costs as much as 16 head dimensions.
LAW = AttentionLaw(5e-6, 1e-6, per_product_s=4e-12, per_score_s=64e-12, per_element_s=1e-12)

BLOCKS = Blocks(64, 64)


def power_of_two(head_dim: int) -> int:
    return 1 << (head_dim - 1).bit_length()


@dataclass(frozen=True)
class Machine:
    """A machine whose own kernel obeys a law exactly, but for seeded noise; libraries take the time they are given."""

    law: AttentionLaw = LAW
    blocks: Blocks = BLOCKS
    slots: int = 2
    padded: Callable[[int], int] = power_of_two
    noise: float = 0.0
    libraries: dict[str, float] = field(default_factory=lambda: {"sdpa_default": 1.5, "sdpa_flash": 1.5})
    details: dict[str, Any] = field(default_factory=dict)

    def tiles(self, p: AttentionParameters) -> TiledAttention:
        padded = self.padded(p.head_dim)
        return TiledAttention(p.batch, p.heads, p.seq_q, p.keys, p.head_dim, padded, p.causal, self.blocks, self.slots)

    def seconds(self, case: Case) -> float:
        """The law's, times the library's factor and that of the backward pass."""
        own = float(self.law.seconds([self.tiles(case.parameters)])[0])
        return own * (2.5 if case.parameters.backward else 1) * self.libraries.get(case.implementation, 1)

    def kernel(self, case: Case) -> dict[str, Any]:
        p = case.parameters
        if case.implementation in self.libraries:
            return {"path": "flash", "details": self.details}
        own = {"blocks": str(self.blocks), "padded_head_dim": self.padded(p.head_dim), "slots": self.slots}
        return {"path": "packed", "details": own}

    def records(self, cases: list[Case], processes: int = 2) -> list[Record]:
        fields = {"processes": processes, "noise": self.noise, "probe": "attention_heads", "kernel": self.kernel}
        return records(cases, self.seconds, **fields)


def axes(**changed: object) -> AttentionHeadsAxes:
    usual = AttentionHeadsAxes(
        implementation=("native", "sdpa_default"),
        extra=(),
        hidden=(512,),
        heads=(8, 4),
        head_dim=(),
        heads_of_head_dim=(4,),
        kv_ratio=("1",),
        mask=("full",),
        phase=("forward", "backward"),
        seq=(256,),
        batch=(1,),
        dtype=("float32",),
        workers=(2,),
    )
    return replace(usual, **changed)  # type: ignore[arg-type]


def cases(**changed: object) -> list[Case]:
    return list({case.case_id: case for case in PROBE.sweep(axes(**changed))}.values())


def findings(machine: Machine, **changed: object) -> Findings:
    return PROBE.findings(machine.records(cases(**changed)))


def test_the_hopper_kernel_has_rivals_of_its_own_and_no_backward_pass() -> None:
    fields = {"implementation": ("cuda_sm90",), "hidden": (4096,), "heads": (32,), "seq": (4096,)}
    tried = [case.parameters for case in cases(blocks=("chosen", "rivals"), **fields)]
    assert not any(p.backward for p in tried)
    assert [str(p.blocks) for p in tried if p.blocks] == ["128x176", "128x160", "128x96", "192x64"]


def test_noise_is_not_turned_into_advice() -> None:
    free_softmax = AttentionLaw(0, 0, per_product_s=4e-12, per_score_s=0, per_element_s=0)
    advice = remarks(findings(Machine(law=free_softmax, noise=0.05)), "slow")
    assert len(advice) == 3
    assert all(each.is_noise for each in advice)


@pytest.mark.parametrize(
    ("machine", "changed", "cause", "column", "slow", "fast"),
    [
        (Machine(law=replace(LAW, per_score_s=0)), {"hidden": (640,), "heads": (8, 5)}, "padding", "padding", 0.375, 0),
        (Machine(law=replace(LAW, per_score_s=0), slots=24), {"seq": (192,)}, "slots", "tiles", 12, 24),
        (
            Machine(law=replace(LAW, overhead_s=0, per_score_s=512e-12)),
            {"heads": (8, 4, 2, 16), "head_dim": (24, 40, 96), "mask": ("causal", "full"), "seq": (256, 512)},
            "softmax",
            "softmax",
            0.8,
            1 / 3,
        ),
    ],
)
def test_the_cause_is_the_one_that_the_machine_was_made_with(
    machine: Machine, changed: dict[str, Any], cause: str, column: str, slow: float, fast: float
) -> None:
    found = findings(machine, implementation=("native",), **changed)
    (said,) = remarks(found, "cause")
    assert said.values["cause"] == CAUSES[cause]
    for split, share in ((said.values["split"], slow), (said.values["fast"], fast)):
        line, *_ = lines(found, "What the forward kernels compute", **{"heads x head_dim": split})
        assert getattr(line[column], "value", line[column]) == pytest.approx(share, rel=0.01)


def test_a_law_that_the_machine_obeys_misses_nothing_it_was_not_fitted_to() -> None:
    changed = {"head_dim": (40, 64, 72, 96, 128, 136), "mask": ("full", "causal"), "seq": (256, 512)}
    (exact,) = remarks(findings(Machine(), **changed), "overhead")
    assert (exact.kind, exact.values["kernel"], exact.values["held_out"]) == ("law", "native, float32, 2 workers", 4)
    assert exact.values["narrow"].value == pytest.approx(64 / 80, rel=0.01)
    assert exact.values["wide"].value == pytest.approx(128 / 144, rel=0.01)
    assert exact.values["product"].value == pytest.approx(LAW.per_product_s, rel=0.01)
    assert exact.values["median"].value < 0.0005
    (noisy,) = remarks(findings(Machine(noise=0.3), **changed), "overhead")
    assert noisy.values["median"].value > 0.0005


def test_softmaxs_share_is_what_the_products_alone_do_not_take() -> None:
    machine = Machine(libraries={"two_gemm": 4.0, "two_gemm_products": 3.0})
    found = findings(machine, implementation=(), extra=("two_gemm", "two_gemm_products"))
    shares = [line["softmax and mask"] for line in lines(found, "Two products")]
    assert [(each.value, each.low, each.high) for each in shares] == [pytest.approx((0.25, 0.25, 0.25))] * 2


def test_tiles_that_head_dim_does_not_fill_explain_the_two_product_form() -> None:
    # The library computes the transposed product: 128 columns of C by 256 rows.
    products = [{"family": "cutlass3", "tile": [128, 256]}] * 2
    machine = Machine(libraries={"two_gemm": 2.0}, details={"products": products})
    found = findings(machine, implementation=("two_gemm",), head_dim=(64, 136), phase=("forward",))
    filled = {row["heads x head_dim"]: (row["tile of P·V"], row["tile filled"].value) for row in lines(found, "Two")}
    assert (filled["4 x 64"], filled["4 x 136"]) == (("256x128", 0.5), ("256x128", 136 / 256))


def test_the_columns_that_a_softmax_costs_are_those_of_the_first_run_on_an_h200() -> None:
    report = PROBE.findings(read_journal(H200_HEADS))
    columns = {
        each.values["kernel"].partition(",")[0]: each.values["columns"]
        for each in remarks(report, "columns")
        if "causal" not in each.values["what"]
    }
    assert columns == {"sdpa_cudnn": 113, "sdpa_flash": 27, "triton": 230}
    assert {each.values["units"] for each in remarks(report, "columns")} == {"softmax at 64, tensor cores at 128"}


def test_the_law_of_head_size_is_the_machines_and_is_judged_on_sizes_left_out() -> None:
    measured = [
        (heads, columns, heads * (7e-6 + 60e-9 * columns)) for heads, columns in ((64, 64), (32, 128), (32, 96))
    ]
    law = HeadSizeLaw.fit(measured)
    assert law is not None
    assert (law.per_head_s, law.per_column_s, law.columns) == pytest.approx((7e-6, 60e-9, 7e-6 / 60e-9))
    assert law.held_out == pytest.approx((0, 0, 0), abs=1e-9)
    off = HeadSizeLaw.fit([*measured, (16, 192, 2 * 16 * (7e-6 + 60e-9 * 192))])
    assert off is not None
    assert max(off.held_out) > 0.3
    assert HeadSizeLaw.fit(measured[:1]) is None
    assert [bucket_of(each) for each in (40, 64, 72, 112, 128, 200, 300)] == [64, 64, 96, 128, 128, 256, 300]
