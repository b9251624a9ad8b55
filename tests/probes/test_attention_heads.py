"""The attention probe splits hidden sizes as asked, and its findings tell the machine that made the records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device, resolve
from pyperf_suite.laws.attention.counted import Blocks, TiledAttention
from pyperf_suite.laws.attention.law import AttentionLaw
from pyperf_suite.operators.attention import Attention, AttentionParameters
from pyperf_suite.probes.attention_heads.probe import AttentionHeads, AttentionHeadsAxes
from pyperf_suite.render.picture import draw
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.findings import Findings

PROBE = AttentionHeads()
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
        random = np.random.default_rng(0)
        made = []
        for process in range(processes):
            for position, case in enumerate(cases):
                t = self.seconds(case) * float(np.exp(self.noise * random.standard_normal()))
                work = Attention().work(case.parameters)
                made.append(
                    Record(
                        run_id="made-up",
                        kind="timing",
                        case=case.to_json(),
                        case_id=case.case_id,
                        process=process,
                        position=position,
                        started_at="",
                        outcome="ok",
                        probe="attention_heads",
                        metrics={"time": Metric("s", t, t, t, t, t, [t])},
                        work={"flop": work.flop, "bytes": work.bytes},
                        kernel=self.kernel(case),
                        quality={"converged": True},
                    )
                )
        return made


def axes(**changed: object) -> AttentionHeadsAxes:
    usual = AttentionHeadsAxes(
        implementation=("native", "sdpa_default"),
        beside=(),
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


def findings(machine: Machine, **changed: object) -> Findings:
    return PROBE.findings(machine.records(PROBE.sweep(axes(**changed))))


def sentences(machine: Machine, begins: str, **changed: object) -> list[str]:
    return [said for said in findings(machine, **changed).sentences if said.startswith(begins)]


def test_every_split_shares_the_hidden_size_and_its_parameters() -> None:
    cases = PROBE.sweep(axes(heads=(2, 4, 8, 16)))
    assert {case.parameters.hidden for case in cases} == {512}
    assert {(case.parameters.heads, case.parameters.head_dim) for case in cases} == {
        (2, 256),
        (4, 128),
        (8, 64),
        (16, 32),
    }
    assert {case.parameters.backward for case in cases if case.implementation == "native"} == {False}
    assert {case.parameters.backward for case in cases if case.implementation != "native"} == {False, True}


@pytest.mark.parametrize(
    ("heads", "nearest"), [(7, "take 4 or 8"), (3, "take 2 or 4"), (513, "take 512"), (511, "take 256 or 512")]
)
def test_heads_that_do_not_divide_hidden_are_refused_with_the_nearest_that_do(heads: int, nearest: str) -> None:
    with pytest.raises(UserError, match=f"do not divide the hidden size 512: {nearest}"):
        PROBE.sweep(axes(heads=(heads,)))


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"kv_ratio": ("3",)}, "kv_ratio=3 .* does not divide 8 heads: take 2 or 4"),
        ({"kv_ratio": ("none",)}, "write a number of query heads to a key head, or all"),
        ({"mask": ("top-left",)}, "choose from full, causal"),
        ({"phase": ("sideways",)}, "choose from forward, backward, decode"),
        ({"heads": (0,)}, "heads=0 .* at least 1"),
        ({"seq": (-5,)}, "seq=-5 .* at least 1"),
        ({"kv_ratio": ("²",)}, "write a number of query heads to a key head, or all"),
        ({"hidden": (10**30,)}, "hidden=10+ .* at most 2147483648"),
        ({"hidden": (2**31 - 1,)}, "8 heads .* do not divide the hidden size 2147483647: take 1 or 2147483647"),
        ({"varied_splits": (-1,)}, "varied_splits=-1 .* 0 or more"),
    ],
)
def test_what_no_attention_has_is_refused_in_one_sentence(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        PROBE.sweep(axes(**changed))


def test_other_masks_key_heads_and_lengths_are_varied_one_at_a_time_on_the_first_split() -> None:
    cases = PROBE.sweep(
        axes(
            implementation=("sdpa_default",),
            kv_ratio=("1", "4", "all"),
            mask=("full", "causal"),
            seq=(256, 512),
            phase=("forward",),
        )
    )
    varied = {(p.heads, p.key_heads, p.causal, p.seq_q) for p in (case.parameters for case in cases)}
    base = {(8, 8, False, 256), (4, 4, False, 256)}
    assert varied == base | {(8, 2, False, 256), (8, 1, False, 256), (8, 8, True, 256), (8, 8, False, 512)}


def test_decoding_asks_one_query_of_all_keys() -> None:
    cases = PROBE.sweep(axes(phase=("forward", "decode"), mask=("causal",)))
    decoding = {case.parameters for case in cases if case.parameters.seq_q == 1}
    assert {(p.heads, p.keys, p.causal) for p in decoding} == {(8, 256, False)}


def test_blocks_are_asked_of_our_kernel_and_of_no_library() -> None:
    asked = {
        (case.implementation, str(case.parameters.blocks)) for case in PROBE.sweep(axes(blocks=("64x64", "32x64")))
    }
    assert asked == {("native", "64x64"), ("native", "32x64"), ("sdpa_default", "None")}


def test_the_recommendation_names_both_passes_the_parameters_and_the_interval() -> None:
    (said,) = sentences(Machine(), "hidden 512 (sdpa_default")
    # The softmax of 8 heads costs twice that of 4; all else is equal, in both passes alike.
    assert said.startswith("hidden 512 (sdpa_default, float32, 1 x 256 tokens): 4 x 128 is 1.")
    assert "x faster than 8 x 64 in forward, 1." in said
    assert "x in backward; same parameters. Cause not told apart." in said


def test_a_split_that_only_its_backward_pass_makes_the_best_is_not_called_faster_in_both() -> None:
    class Backwards(Machine):
        def seconds(self, case: Case) -> float:
            p = case.parameters
            return 1e-3 * (100 / p.heads if p.backward else p.heads)

    (said,) = sentences(Backwards(), "hidden 512 (sdpa_default")
    assert "8 x 64 is 0.50 [0.50, 0.50] x as fast as 4 x 128 in forward, 2.00 [2.00, 2.00] x in backward" in said


def test_multi_query_attention_is_not_said_to_have_the_same_parameters() -> None:
    (said,) = sentences(Machine(), "hidden 512 (sdpa_default", kv_ratio=("all",))
    assert "4 x 128 is" in said
    assert "same parameters" not in said


def test_noise_is_not_turned_into_advice() -> None:
    free_softmax = AttentionLaw(0, 0, per_product_s=4e-12, per_score_s=0, per_element_s=0)
    (said,) = sentences(Machine(law=free_softmax, noise=0.05), "hidden 512 (sdpa_default")
    assert "no split is faster than another beyond the intervals" in said


@pytest.mark.parametrize(
    ("machine", "changed", "cause"),
    [
        (
            Machine(law=replace(LAW, per_score_s=0)),
            {"hidden": (640,), "heads": (8, 5)},
            "Cause in forward: bucket padding, head_dim 80 computed as 128.",
        ),
        (
            Machine(law=replace(LAW, per_score_s=0), slots=24),
            {"heads": (8, 4), "seq": (192,)},
            "Cause in forward: too few tiles for the slots, 12 on 24.",
        ),
        (
            Machine(law=replace(LAW, overhead_s=0, per_score_s=512e-12)),
            {"heads": (8, 4, 2, 16), "head_dim": (24, 40, 96), "mask": ("causal", "full"), "seq": (256, 512)},
            "Cause in forward: the softmax of more heads, 80% of a step and 33% there.",
        ),
    ],
)
def test_the_cause_is_the_one_that_the_machine_was_made_with(
    machine: Machine, changed: dict[str, Any], cause: str
) -> None:
    (said,) = sentences(machine, "hidden", implementation=("native",), **changed)
    assert said.endswith(cause)


def test_a_law_that_the_machine_obeys_misses_nothing_it_was_not_fitted_to() -> None:
    changed = {"head_dim": (40, 64, 72, 96, 128, 136), "mask": ("full", "causal"), "seq": (256, 512)}
    (exact,) = sentences(Machine(), "Law of native, float32, 2 workers", **changed)
    assert "80% at head_dim 64 and 89% at head_dim 128" in exact
    assert "misses the 4 of held-out head dimensions, lengths and masks by 0.0% (median" in exact
    (noisy,) = sentences(Machine(noise=0.3), "Law of native", **changed)
    assert not noisy.split(" by ")[1].startswith("0.0%")


def test_the_largest_drop_over_head_dimensions_is_named_with_both_rates() -> None:
    said = sentences(Machine(), "4 heads (native", head_dim=(64, 72, 128))
    assert len(said) == 1
    assert "forward: throughput falls most from head_dim 64 to 72" in said[0]


def test_the_padding_of_our_kernel_is_told_for_each_head_dimension_it_pads() -> None:
    (said,) = sentences(Machine(), "Our native kernel computes", head_dim=(64, 72, 96))
    assert "72 as 128 (44% of its products in vain), 96 as 128 (25%" in said
    (none,) = sentences(Machine(padded=lambda head_dim: head_dim), "Our native kernel pads none")
    assert none.endswith("64, 128.")


def test_a_backend_that_beats_the_default_is_named_with_where() -> None:
    machine = Machine(libraries={"sdpa_default": 1.5, "sdpa_flash": 1.5, "sdpa_cudnn": 1.0})
    (said,) = sentences(machine, "sdpa_default", implementation=("sdpa_default", "sdpa_flash", "sdpa_cudnn"))
    assert said.startswith("sdpa_default (float32, 2 workers) picked flash for 4 of 4 cases; another was faster in 4")
    assert "most sdpa_cudnn at" in said
    assert said.endswith("1.50 [1.50, 1.50] x.")
    (alike,) = sentences(Machine(), "sdpa_default", implementation=("sdpa_default", "sdpa_flash"))
    assert "no other backend measured was faster" in alike


def test_softmaxs_share_is_what_the_products_alone_do_not_take() -> None:
    machine = Machine(libraries={"two_gemm": 4.0, "two_gemm_products": 3.0})
    (said, _) = sentences(machine, "Softmax", implementation=(), beside=("two_gemm", "two_gemm_products"))
    assert said.startswith("Softmax and mask take 25% [25%, 25%] at 8 x 64 of two_gemm's time")


def test_tiles_that_head_dim_does_not_fill_explain_the_two_product_form() -> None:
    # The library computes the transposed product: 128 columns of C by 256 rows.
    products = [{"family": "cutlass3", "tile": [128, 256]}, {"family": "cutlass3", "tile": [128, 256]}]
    machine = Machine(libraries={"two_gemm": 2.0}, details={"products": products})
    (said,) = sentences(machine, "Of what two_gemm", implementation=("two_gemm",), head_dim=(64, 136))
    assert said.endswith(
        "its result is 50% at head_dim 64 in tiles of 256x128, 53% at head_dim 136 in tiles of 256x128."
    )


def test_the_bucket_that_flash_attention_tells_in_its_kernels_name_is_a_cause() -> None:
    name = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{}, 64, 64, 4, false, cutlass::bfloat16_t>"

    class Flash(Machine):
        def kernel(self, case: Case) -> dict[str, Any]:
            return {"path": "flash", "details": {"launched": [name.format(self.padded(case.parameters.head_dim))]}}

    machine = Flash(law=replace(LAW, per_score_s=0))
    (said,) = sentences(machine, "hidden 640 (sdpa_default", hidden=(640,), heads=(8, 5))
    assert "5 x 128 is" in said
    assert said.endswith("Cause in forward: bucket padding, head_dim 80 computed as 128.")


def test_whether_the_order_of_splits_holds_elsewhere_is_told() -> None:
    changed = {"heads": (8, 4, 2), "seq": (256, 512), "varied_splits": (2,), "implementation": ("native",)}
    (said,) = sentences(Machine(), "native, float32, hidden 512", **changed)
    assert "in 1 of 1 other masks, kv ratios, lengths and decoding the order stays the same." in said


def test_figures_draw_every_implementation_beside_the_law(tmp_path: Any) -> None:
    found = findings(Machine(), heads=(8, 4, 2), head_dim=(40, 64, 72, 96), mask=("full", "causal"), seq=(256, 512))
    assert {figure.name.split("_b1")[0] for figure in found.figures} == {
        "attention_heads_hidden_512_burst_float32_w2",
        "attention_head_dim_4_heads_burst_float32_w2",
    }
    for figure in found.figures:
        ((forward, backward),) = figure.rows
        assert [series.label for series in forward.series] == ["native", "law of native", "sdpa_default"]
        assert [series.label for series in backward.series] == ["sdpa_default"]
        points, law = forward.series[:2]
        if figure.name.startswith("attention_heads_hidden"):
            np.testing.assert_allclose(law.y, points.y, rtol=1e-3)
        assert draw(figure, tmp_path).stat().st_size > 10_000


def test_what_belongs_to_no_sweep_is_in_a_table_of_its_own() -> None:
    tables = {
        table.title: table for table in findings(Machine(), mask=("full", "causal"), phase=("forward", "decode")).tables
    }
    others = tables["Other masks, key heads and lengths"]
    assert [row[:4] for row in others.rows if row[0].startswith("native")] == [
        ("native, float32", "1 x 1 tokens to 256 keys", "8 x 64", "forward"),
        ("native, float32", "1 x 256 tokens, causal", "8 x 64", "forward"),
    ]
    splits = tables["Throughput by number of heads at constant hidden size"]
    assert [row[6] for row in splits.rows if row[0].startswith("native")] == ["best", splits.rows[1][6]]


@pytest.mark.parametrize("keep", [0, 1, 2, 5])
def test_few_or_no_records_are_told_without_a_traceback(keep: int) -> None:
    records = Machine().records(PROBE.sweep(axes(heads=(8, 4, 2), head_dim=(72, 96, 128))), processes=1)[:keep]
    refused = [replace(r, outcome="unsupported", reason="the head dimension is too large", metrics={}) for r in records]
    for some in (records, refused):
        assert isinstance(PROBE.findings(some), Findings)


def test_cases_that_different_processes_measured_are_not_compared() -> None:
    records = Machine().records(PROBE.sweep(axes(implementation=("native",))), processes=2)
    apart = [record for position, record in enumerate(records) if position in (0, 3)]
    (said, *_) = PROBE.findings(apart).sentences
    assert said.endswith("no process measured two splits.")


@pytest.mark.parametrize("profile", PROFILES)
def test_on_a_gpu_every_profile_is_valid_and_asks_our_triton_kernel(profile: str) -> None:
    cases = PROBE.cases(profile, Device("cuda"))
    assert {"triton", "sdpa_default"} <= {case.implementation for case in cases}
    assert {(40, 128), (64, 80)} <= {(case.parameters.heads, case.parameters.head_dim) for case in cases}
    assert {case.parameters.backward for case in cases if case.implementation == "triton"} == {False, True}
    assert len({case.case_id for case in cases}) == len(cases)


def test_on_a_cpu_the_quick_profile_adds_few_cases() -> None:
    assert len(PROBE.cases("quick", resolve("cpu"))) <= 8


def test_each_implementation_and_pass_is_under_a_heading_of_its_own() -> None:
    assert {PROBE.group(case) for case in PROBE.sweep(axes(phase=("forward", "backward", "decode")))} == {
        "attention_heads native forward",
        "attention_heads native decode",
        "attention_heads sdpa_default forward",
        "attention_heads sdpa_default backward",
        "attention_heads sdpa_default decode",
    }
