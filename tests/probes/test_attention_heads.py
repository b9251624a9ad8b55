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
from pyperf_suite.probes.attention_heads import PROBE, AttentionHeadsAxes
from pyperf_suite.probes.attention_heads.findings import CAUSES
from pyperf_suite.render.picture import draw
from pyperf_suite.runner.profiles import PROFILES
from pyperf_suite.runner.record import Case, Metric, Record
from pyperf_suite.spec.findings import Findings, Remark
from pyperf_suite.workloads.attention import Attention, AttentionParameters

CPU = resolve("cpu")
# Products at 1 TFLOP/s on each slot; a score costs as much as 16 head dimensions.
LAW = AttentionLaw(5e-6, 1e-6, per_product_s=4e-12, per_score_s=64e-12, per_element_s=1e-12)

BLOCKS = Blocks(64, 64)
CAUSAL = AttentionParameters(1, 8, 64, 256, causal=True, dtype="float32", workers=2)


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


def cases(**changed: object) -> list[Case]:
    return list({case.case_id: case for case in PROBE.sweep(axes(**changed))}.values())


def findings(machine: Machine, **changed: object) -> Findings:
    return PROBE.findings(machine.records(cases(**changed)))


def told(found: Findings, *names: str, **values: object) -> list[Remark]:
    """Remarks that have such values, and values of these names."""
    return [
        each
        for each in found.remarks
        if set(names) <= each.values.keys() and values.items() <= dict(each.values).items()
    ]


def lines(found: Findings, title: str, **values: object) -> list[dict[str, Any]]:
    """Rows of a table by the names of its columns, the first of each name."""
    (table,) = [table for table in found.tables if table.title.startswith(title)]
    names = [column.name for column in table.columns]
    rows = [dict(zip(reversed(names), reversed(row), strict=True)) for row in table.rows]
    return [row for row in rows if values.items() <= row.items()]


def test_every_split_shares_the_hidden_size_and_its_parameters() -> None:
    swept = cases(heads=(2, 4, 8, 16))
    splits = {(case.parameters.heads, case.parameters.head_dim) for case in swept}
    assert splits == {(2, 256), (4, 128), (8, 64), (16, 32)}
    assert {case.parameters.backward for case in swept if case.implementation == "native"} == {False}
    assert {case.parameters.backward for case in swept if case.implementation != "native"} == {False, True}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"heads": "7"}, "7 heads .* do not divide the hidden size 512: take 4 or 8"),
        ({"heads": "3"}, "do not divide the hidden size 512: take 2 or 4"),
        ({"heads": "513"}, "do not divide the hidden size 512: take 512"),
        ({"heads": "511"}, "do not divide the hidden size 512: take 256 or 512"),
        ({"kv_ratio": "3"}, "kv_ratio=3 .* does not divide 8 heads: take 2 or 4"),
        ({"kv_ratio": "none"}, "write a number of query heads to a key head, or all"),
        ({"kv_ratio": "²"}, "write a number of query heads to a key head, or all"),
        ({"mask": "top-left"}, "choose from full, causal"),
        ({"phase": "sideways"}, "choose from forward, backward, decode"),
        ({"heads": "0"}, "heads=0 .* between 1 and"),
        ({"seq": "-5"}, "seq=-5 .* between 1 and"),
        ({"hidden": "1" + 30 * "0"}, "hidden=10+ .* and 2147483648"),
        ({"hidden": "2147483647"}, "8 heads .* do not divide the hidden size 2147483647: take 1 or 2147483647"),
        ({"varied_splits": "-1"}, "varied_splits=-1 .* at least 0"),
        ({"blocks": "64"}, "write QUERIESxKEYS"),
    ],
)
def test_what_no_attention_has_is_refused_in_one_sentence(changed: dict[str, str], told: str) -> None:
    with pytest.raises(UserError, match=told):
        PROBE.cases("quick", CPU, {"hidden": "512", "heads": "8,4"} | changed)


def test_other_masks_key_heads_and_lengths_are_varied_one_at_a_time_on_the_first_split() -> None:
    swept = cases(
        implementation=("sdpa_default",),
        kv_ratio=("1", "4", "all"),
        mask=("full", "causal"),
        seq=(256, 512),
        phase=("forward",),
    )
    varied = {(p.heads, p.key_heads, p.causal, p.seq_q) for p in (case.parameters for case in swept)}
    base = {(8, 8, False, 256), (4, 4, False, 256)}
    assert varied == base | {(8, 2, False, 256), (8, 1, False, 256), (8, 8, True, 256), (8, 8, False, 512)}


def test_decoding_asks_one_query_of_all_keys() -> None:
    swept = cases(phase=("forward", "decode"), mask=("causal",))
    decoding = {case.parameters for case in swept if case.parameters.seq_q == 1}
    assert {(p.heads, p.keys, p.causal) for p in decoding} == {(8, 256, False)}


def test_blocks_are_asked_of_our_kernel_and_of_no_library() -> None:
    asked = {(case.implementation, str(case.parameters.blocks)) for case in cases(blocks=("64x64", "32x64"))}
    assert asked == {("native", "64x64"), ("native", "32x64"), ("sdpa_default", "None")}


def test_the_recommendation_has_both_passes_and_no_cause_that_nothing_tells() -> None:
    found = findings(Machine())
    # The softmax of 8 heads costs twice that of 4; all else is equal, in both passes alike.
    ratios = {}
    for each in told(found, "slow", kernel="sdpa_default, float32"):
        assert (each.values["split"], each.values["slow"], each.values["hidden"]) == ("4 x 128", "8 x 64", 512)
        assert "with the same parameters" in each.template
        ratios[each.values["of_pass"]] = each.values["faster"]
    case, other = (each for each in cases(implementation=("sdpa_default",), phase=("forward",)))
    expected = Machine().seconds(case) / Machine().seconds(other)
    assert ratios["forward"].value == pytest.approx(expected)
    assert ratios["backward"].value == pytest.approx(expected)
    assert ratios["forward"].low == pytest.approx(expected)
    assert told(found, "cause", kernel="sdpa_default, float32") == []


def test_a_split_that_only_its_backward_pass_makes_the_best_is_slower_in_forward() -> None:
    class Backwards(Machine):
        def seconds(self, case: Case) -> float:
            p = case.parameters
            return 1e-3 * (100 / p.heads if p.backward else p.heads)

    found = told(findings(Backwards()), "slow", kernel="sdpa_default, float32", split="8 x 64")
    assert {each.values["of_pass"]: each.values["faster"].value for each in found} == {
        "forward": pytest.approx(0.5),
        "backward": pytest.approx(2),
    }


def test_multi_query_attention_is_not_said_to_have_the_same_parameters() -> None:
    found = told(findings(Machine(), kv_ratio=("all",)), "slow", kernel="sdpa_default, float32")
    assert {each.values["split"] for each in found} == {"4 x 128"}
    assert not any("same parameters" in each.template for each in found)


def test_noise_is_not_turned_into_advice() -> None:
    free_softmax = AttentionLaw(0, 0, per_product_s=4e-12, per_score_s=0, per_element_s=0)
    advice = told(findings(Machine(law=free_softmax, noise=0.05)), "slow")
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
    (said,) = told(found, "cause")
    assert said.values["cause"] == CAUSES[cause]
    for split, share in ((said.values["split"], slow), (said.values["fast"], fast)):
        line, *_ = lines(found, "What the forward kernels compute", **{"heads x head_dim": split})
        assert getattr(line[column], "value", line[column]) == pytest.approx(share, rel=0.01)


def test_a_law_that_the_machine_obeys_misses_nothing_it_was_not_fitted_to() -> None:
    changed = {"head_dim": (40, 64, 72, 96, 128, 136), "mask": ("full", "causal"), "seq": (256, 512)}
    (exact,) = told(findings(Machine(), **changed), "overhead")
    assert (exact.kind, exact.values["kernel"], exact.values["held_out"]) == ("law", "native, float32, 2 workers", 4)
    assert exact.values["narrow"].value == pytest.approx(64 / 80, rel=0.01)
    assert exact.values["wide"].value == pytest.approx(128 / 144, rel=0.01)
    assert exact.values["product"].value == pytest.approx(LAW.per_product_s, rel=0.01)
    assert exact.values["median"].value < 0.0005
    (noisy,) = told(findings(Machine(noise=0.3), **changed), "overhead")
    assert noisy.values["median"].value > 0.0005


def test_the_largest_drop_over_head_dimensions_is_that_of_the_rates() -> None:
    found = findings(Machine(), head_dim=(64, 72, 128))
    (said,) = told(found, "drop", kernel="native, float32")
    assert (said.values["head_dim"], said.values["after"], said.values["of_pass"]) == (64, 72, "forward")
    before, after, _ = lines(found, "Throughput by head dimension", implementation="native, float32")
    assert after["forward"].value / before["forward"].value == pytest.approx(said.values["drop"].value)
    assert said.values["drop"].value < 0.7


def test_the_padding_of_our_kernel_stands_beside_each_head_dimension() -> None:
    def padding(machine: Machine) -> dict[str, float]:
        found = lines(findings(machine, head_dim=(64, 72, 96)), "What the forward kernels compute")
        return {line["heads x head_dim"]: line["padding"].value for line in found}

    assert padding(Machine()) == {
        "4 x 64": 0,
        "8 x 64": 0,
        "4 x 72": pytest.approx(1 - 72 / 128),
        "4 x 96": 0.25,
        "4 x 128": 0,
    }
    assert set(padding(Machine(padded=lambda head_dim: head_dim)).values()) == {0}


def test_a_backend_that_beats_the_default_is_named_with_where() -> None:
    machine = Machine(libraries={"sdpa_default": 1.5, "sdpa_flash": 1.5, "sdpa_cudnn": 1.0})
    found = findings(machine, implementation=("sdpa_default", "sdpa_flash", "sdpa_cudnn"))
    (picked,) = told(found, path="flash")
    assert (picked.values["kernel"], picked.values["count"]) == ("sdpa_default, float32, 2 workers", 4)
    (faster,) = told(found, "count", kernel="sdpa_cudnn, float32")
    assert faster.values["count"] == 4
    assert (faster.values["faster"].value, faster.values["faster"].low) == pytest.approx((1.5, 1.5))
    alike = findings(Machine(), implementation=("sdpa_default", "sdpa_flash"))
    assert [each.values["path"] for each in told(alike, "count")] == ["flash"]


def test_softmaxs_share_is_what_the_products_alone_do_not_take() -> None:
    machine = Machine(libraries={"two_gemm": 4.0, "two_gemm_products": 3.0})
    found = findings(machine, implementation=(), beside=("two_gemm", "two_gemm_products"))
    shares = [line["softmax and mask"] for line in lines(found, "Two products")]
    assert [(each.value, each.low, each.high) for each in shares] == [pytest.approx((0.25, 0.25, 0.25))] * 2


def test_tiles_that_head_dim_does_not_fill_explain_the_two_product_form() -> None:
    # The library computes the transposed product: 128 columns of C by 256 rows.
    products = [{"family": "cutlass3", "tile": [128, 256]}, {"family": "cutlass3", "tile": [128, 256]}]
    machine = Machine(libraries={"two_gemm": 2.0}, details={"products": products})
    found = findings(machine, implementation=("two_gemm",), head_dim=(64, 136), phase=("forward",))
    filled = {
        line["heads x head_dim"]: (line["tile of P·V"], line["tile filled"].value) for line in lines(found, "Two")
    }
    assert (filled["4 x 64"], filled["4 x 136"]) == (("256x128", 0.5), ("256x128", 136 / 256))


def test_the_bucket_that_flash_attention_tells_in_its_kernels_name_is_a_cause() -> None:
    name = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<{}, 64, 64, 4, false, cutlass::bfloat16_t>"

    class Flash(Machine):
        def kernel(self, case: Case) -> dict[str, Any]:
            return {"path": "flash", "details": {"launched": [name.format(self.padded(case.parameters.head_dim))]}}

    found = findings(Flash(law=replace(LAW, per_score_s=0)), hidden=(640,), heads=(8, 5))
    (said,) = told(found, "cause", kernel="sdpa_default, float32")
    assert (said.values["cause"], said.values["fast"]) == (CAUSES["padding"], "5 x 128")
    (line,) = lines(found, "Throughput by number", implementation="sdpa_default, float32", **{"computed as": 128})[1:]
    assert line["heads x head_dim"] == "8 x 80"


def test_the_fastest_split_stands_beside_every_length() -> None:
    changed = {"heads": (8, 4, 2), "seq": (256, 512), "varied_splits": (2,), "implementation": ("native",)}
    found = findings(Machine(), **changed)
    ends = {line["what"]: (line["fastest"], line["slowest"]) for line in lines(found, "Fastest and slowest")}
    assert ends == {"1 x 256 tokens": ("2 x 256", "8 x 64"), "1 x 512 tokens": ("4 x 128", "8 x 64")}
    assert {each.values["what"] for each in told(found, "slow")} == {"1 x 256 tokens", "1 x 512 tokens"}


def test_figures_draw_every_implementation_beside_the_law(tmp_path: Any) -> None:
    machine = Machine(noise=1e-5)
    found = findings(machine, heads=(8, 4, 2), head_dim=(40, 64, 72, 96), mask=("full", "causal"), seq=(256, 512))
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


def test_every_row_is_in_a_sweep_or_in_a_table_of_its_own() -> None:
    found = findings(Machine(), mask=("full", "causal"), phase=("forward", "decode"))
    native = {"implementation": "native, float32"}
    others = lines(found, "Other masks", **native)
    assert [(line["what"], line["heads x head_dim"], line["pass"]) for line in others] == [
        ("1 x 1 tokens to 256 keys", "8 x 64", "forward"),
        ("1 x 256 tokens, causal", "8 x 64", "forward"),
    ]
    assert others[1]["time"].value == pytest.approx(others[1]["rate"].value ** -1 * Attention().work(CAUSAL).flop)
    best, other = lines(found, "Throughput by number", **native)
    assert (best["hidden"], best["beside the best"], best["heads x head_dim"]) == (512, "best", "4 x 128")
    assert other["beside the best"].value == pytest.approx(other["forward"].value / best["forward"].value)


@pytest.mark.parametrize("keep", [0, 1, 2, 5])
def test_few_or_no_records_are_told_without_a_traceback(keep: int) -> None:
    records = Machine().records(cases(heads=(8, 4, 2), head_dim=(72, 96, 128)), processes=1)[:keep]
    refused = [replace(r, outcome="unsupported", reason="the head dimension is too large", metrics={}) for r in records]
    assert isinstance(PROBE.findings(records), Findings)
    assert PROBE.findings(refused) == Findings()


def test_cases_that_different_processes_measured_are_not_compared() -> None:
    records = Machine().records(cases(implementation=("native",)), processes=2)
    found = PROBE.findings([record for position, record in enumerate(records) if position in (0, 3)])
    assert told(found, "faster") == []
    assert [line["faster"] for line in lines(found, "Fastest and slowest")] == [None]


@pytest.mark.parametrize("profile", PROFILES)
def test_on_a_gpu_every_profile_is_valid_and_asks_our_triton_kernel(profile: str) -> None:
    swept = PROBE.cases(profile, Device("cuda"))
    assert {"triton", "sdpa_default"} <= {case.implementation for case in swept}
    assert {(40, 128), (64, 80)} <= {(case.parameters.heads, case.parameters.head_dim) for case in swept}
    assert {case.parameters.backward for case in swept if case.implementation == "triton"} == {False, True}
    assert len({case.case_id for case in swept}) == len(swept)


def test_on_a_cpu_the_quick_profile_adds_few_cases() -> None:
    assert len(PROBE.cases("quick", CPU)) <= 8


def test_each_implementation_and_pass_is_under_a_heading_of_its_own() -> None:
    assert {PROBE.group(case) for case in cases(phase=("forward", "backward", "decode"))} == {
        "attention_heads native forward",
        "attention_heads native decode",
        "attention_heads sdpa_default forward",
        "attention_heads sdpa_default backward",
        "attention_heads sdpa_default decode",
    }
