"""The answers of `size` and `explain`: where time goes, rules, gains, JSON, and refusals in one sentence."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from pyperf_suite.findings.axes import parse_overrides, replace_axes
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.laws import prices
from pyperf_suite.planner.laws.gemm import gemm_time
from pyperf_suite.planner.layout.grid import Cluster, Training
from pyperf_suite.planner.layout.plan import planned
from pyperf_suite.planner.product_explained import explain_product
from pyperf_suite.planner.sizing.report import checks, sizing, spent_by
from pyperf_suite.planner.sizing.search import Bounds
from pyperf_suite.planner.sizing.step import Setting
from pyperf_suite.probes.attention_heads import AttentionHeadsAxes, sweep
from pyperf_suite.render.text import sentence
from tests.commands import invoke
from tests.records import printed_lines, printed_values

GPT = ModelDimensions(layers=4, hidden=2560, ffn=10240, heads=32, vocab=50257, bias=True)
LLAMA = ModelDimensions(layers=4, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256, gated=True)
MIXTRAL = ModelDimensions(4, 2048, 7168, 16, 32000, kv_heads=8, gated=True, experts=8, top_k=2)
WINDOWED = ModelDimensions(6, 2048, 8192, 16, 32000, kv_heads=8, gated=True, window=512, windowed_layers=5)
CHUNKED = ModelDimensions(4, 2048, 8192, 16, 32000, kv_heads=8, gated=True, window=512, windowed_layers=3, chunked=True)
LATENT = ModelDimensions(
    4, 2048, 8192, 16, 32000, gated=True, experts=16, top_k=2, expert_ffn=1024, shared_ffn=1024, dense_layers=1,
    head_dim=192, query_rank=512, latent_rank=512, rope_head_dim=64, value_head_dim=128,
)  # fmt: skip
SMALL = ModelDimensions(12, 768, 3072, 12, 50304)
MODELS = {"gpt": GPT, "llama": LLAMA, "mixtral": MIXTRAL, "small": SMALL, "windowed": WINDOWED, "chunked": CHUNKED,
          "latent": LATENT}  # fmt: skip
MODEL = ("--layers", "4", "--hidden", "2560", "--heads", "32", "--ffn", "10240", "--vocab", "50257", "--not-gated")
A100, H200 = find_gpu("A100"), find_gpu("H200")


@pytest.fixture
def command(made_up, monkeypatch):
    """The command line over the made-up laws; its result for arguments."""
    monkeypatch.setattr(prices, "Prices", lambda laws, dtype, library=None: made_up)
    return invoke


@pytest.mark.parametrize(
    ("name", "gpu", "dtype", "tp"),
    [
        *((name, gpu, "bf16", 1) for name in MODELS for gpu in (A100, H200)),
        *((name, A100, "bf16", tp) for name in MODELS if name not in ("gpt", "small") for tp in (2, 8)),
        *((name, H200, dtype, tp) for name in ("llama", "mixtral") for dtype in ("fp8", "fp16") for tp in (1, 2, 8)),
    ],
    ids=str,
)
def test_size_itemises_what_layout_sums(name, gpu, dtype, tp):
    """One list: the same time by kind of work, the same iteration, the same MFU, whatever waits for the host."""
    model = MODELS[name]
    answer = sizing(gpu, Setting(model, 2048, tp=tp, dtype=dtype), Bounds(vary=("kv_heads",)))
    fixed = {"micro_batch": 1, "recompute": 0, "tensor": tp}
    best = planned(Training(model, 1, 2048, dtype=dtype), Cluster(gpu, tp, tp, gpu.memory_bytes), fixed=fixed).best
    assert float(answer.iteration.seconds) == pytest.approx(best.seconds, rel=1e-6)
    assert answer.utilization == pytest.approx(best.mfu, rel=1e-6)
    kinds = {
        "products": ("gemm",),
        "attention": ("attention",),
        "memory bound": ("memory_bound",),
        "tensor": ("collective",),
    }
    found = {kind: math.fsum(part.seconds for part in answer.spent if part.law in kinds[kind]) for kind in kinds}
    found["experts"] = math.fsum(part.seconds for part in answer.spent if part.part == "tokens sorted by expert")
    found["memory bound"] -= found["experts"]
    # The time that TP's exchange takes from products is counted as if products always hid it.
    assert found == pytest.approx({kind: best.parts[kind] for kind in found}, rel=1e-6)
    assert answer.search.present.seconds == pytest.approx(math.fsum(found.values()), rel=1e-6)


def test_a_window_is_priced_as_what_it_sees(made_up):
    whole = ModelDimensions(6, 2048, 8192, 16, 32000, kv_heads=8, gated=True)
    spent = {part.part: part.seconds for part in spent_by(Setting(WINDOWED, 8192), made_up)}
    in_full = {part.part: part.seconds for part in spent_by(Setting(whole, 8192), made_up)}
    assert spent["attention, forward"] == pytest.approx(in_full["attention, forward"] / 6)
    assert spent["windowed attention, forward"] < in_full["attention, forward"] / 6
    # As long as the sequence, it is none.
    short = spent_by(Setting(WINDOWED, 512), made_up)
    assert {part.sizes[-1] for part in short if part.law == "attention"} == {0}


def test_rules_are_checked_with_what_keeping_them_is_worth(made_up):
    odd = ModelDimensions(layers=4, hidden=2560, ffn=10220, heads=32, vocab=50257, bias=True)
    by_rule = {check.rule.split()[0]: check for check in checks(Setting(odd, 2048), made_up)}
    assert {name: check.kept for name, check in by_rule.items()} == {
        "vocab": False, "ffn": False, "hidden": True, "head_dim": False, "tokens": True,
    }  # fmt: skip
    assert by_rule["vocab"].better.setting.model.vocab == 50304
    assert by_rule["vocab"].better.is_faster
    assert by_rule["ffn"].better.setting.model.ffn == 10240
    head_dim = by_rule["head_dim"].better.setting.model
    assert (head_dim.heads, head_dim.kv_heads, head_dim.head_dim) == (40, 40, 64)
    *_, tokens = checks(Setting(odd, 2047), made_up)
    assert tokens.better.setting.seq == 2048
    assert by_rule["hidden"].better is None
    (wide,) = (each for each in checks(Setting(LLAMA, 2048, tp=8), made_up) if each.rule.startswith("vocab"))
    assert (wide.rule, wide.kept) == ("vocab divisible by 512", False)


def test_heads_beyond_the_law_of_attention_are_not_known_and_the_command_that_measures_them_is_named():
    """Heads of 80 on an A100: neither kept nor changed by a law that was not fitted on them."""
    setting = Setting(ModelDimensions(32, 2560, 10240, 32, 50257, bias=True), 4096)
    answer = sizing(find_gpu("A100"), setting, Bounds())
    heads = answer.search.alone["heads"]
    assert heads.unknown
    assert not heads.is_faster
    report = answer.findings
    (row,) = (row for row in report.tables[0].rows if row[0] == "heads")
    assert "not known" in row
    (said,) = (each.values for each in report.remarks if "heads" in each.values and "width" in each.values)
    assert said["width"] == 2560
    assert "32" in str(said["heads"])
    assert not any("Keep the dimensions" in each.template for each in report.remarks)


def test_size_reads_a_config(command, tmp_path):
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4,
              "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
              "max_position_embeddings": 2048}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = command("size", "--config", str(tmp_path / "config.json"), "--gpu", "H200", "--json")
    assert result.exit_code == 0, result.output
    (step,) = printed_values(json.loads(result.stdout), "model", "seq")
    assert step["seq"] == 2048
    assert "over 4 key-value heads" in step["model"]
    parts = printed_lines(json.loads(result.stdout), "Where a micro-batch goes")
    assert sum(part["of the step"] for part in parts) == pytest.approx(1, abs=0.02)
    longer = command("size", "--config", str(tmp_path), "--gpu", "H200", "--seq", "4096", "--json")
    assert "4096 tokens" in str(json.loads(longer.stdout)["probes"][0]["cautions"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--hidden", "0"), "is not in the range"),
        (("--heads", "33"), "cannot be divided into 33 heads"),
        (("--tp", "3"), "take tp = 2 or 4"),
        (("--ffn", "99999999999"), "beyond the"),
        (("--gpu", "H2000"), "H200"),
        (("--vary", "head"), "did you mean heads"),
        (("--gpu", "A100", "--dtype", "fp8"), "no units for 'fp8'"),
        (("--seq", "-1"), "is not in the range"),
        (("--calibration", "absent.npz"), "no calibration at absent.npz"),
    ],
)
def test_what_cannot_be_sized_is_one_sentence_and_exit_code_2(command, arguments, words):
    result = command("size", *MODEL, "--gpu", "H200", *arguments)
    assert result.exit_code == 2
    assert words in result.output.strip().splitlines()[-1]


def product(prices, m, n, k, layout="TN"):
    return explain_product(H200, (m, n, k), "bf16", layout, prices=prices)


@pytest.mark.parametrize(("layout", "names"), [("TN", "N and K"), ("NN", "N and K"), ("NT", "M and N")])
def test_only_dimensions_along_which_rows_lie_have_to_divide(made_up, layout, names):
    odd = product(made_up, 4097, 4097, 4097, layout)
    assert names in {each.values.get("names") for each in odd.findings.remarks}


def test_a_better_size_has_the_interval_of_the_laws_error(made_up, made_up_with):
    sure = product(made_up, 4096, 50257, 4096)
    assert all(better.low <= better.rate_ratio < better.high for better in sure.better)
    (row,) = (row for row in sure.findings.tables[0].rows if row[:3] == ("N", "50257", "50264"))
    assert row[-1].value == pytest.approx(2, abs=0.005)
    unsure = product(made_up_with(error_percent=60.0), 4096, 50257, 4096)
    assert {each.sizes["N"] for each in unsure.better} == {50264, 50256}, "only what nothing but alignment tells apart"
    assert product(made_up, 4096, 8192, 4096).better == ()


# M x N x K on GPUs: odd sizes that people had, of which the nearest that win are proposed.
ODD_PRODUCTS = {
    (4096, 11007, 4096): ("H100", "A100"),
    (4096, 50257, 2560): ("H100", "A100"),
    (4096, 49155, 4096): ("H100", "A100"),
    (8192, 151655, 3584): ("A100", "H200"),
    (4096, 13823, 5120): ("H200",),
    (2048, 32003, 4096): ("A100", "L40S"),
    (8192, 5461, 2048): ("H100",),
    (4096, 6145, 4096): ("B200",),
    (4096, 100277, 6144): ("H200",),
    (4096, 4096, 10943): ("H100",),
    (4096, 4096, 1365): ("H100",),
    (2048, 2560, 6827): ("A100",),
    (16384, 257, 1024): ("H100",),
    (16384, 1003, 768): ("H100",),
    (4096, 12289, 12288): ("H200",),
    (4096, 8193, 2730): ("H200",),
}


@pytest.mark.parametrize(("sizes", "gpu"), [(sizes, gpu) for sizes, gpus in ODD_PRODUCTS.items() for gpu in gpus])
def test_an_odd_size_is_padded_to_the_nearest_that_wins_and_no_other_of_little_growth_is_faster(sizes, gpu):
    explained = explain_product(find_gpu(gpu), sizes, "bf16", "TN")
    odd = {name: size for name, size in zip("MNK", sizes, strict=True) if size % 8 and name != "M"}
    larger = explained.better[0]
    assert larger.present.keys() == odd.keys(), "tokens are no dimension of a model"
    assert any(each.sizes[name] < odd[name] for each in explained.better for name in odd)
    fastest = min([larger.seconds, *(each.seconds for each in explained.better if 0 < each.growth <= 0.02)])
    run = 8 if find_gpu(gpu).compute_capability >= (9, 0) else 16  # Ampere's library has bad kernels at 16 bytes
    for name, size in odd.items():
        assert 0 < larger.sizes[name] - size <= run
        grown = np.arange(size // 8 * 8 + 8, int(1.02 * size) + 1, 8)
        others = {
            other: np.full(len(grown), larger.sizes.get(other, each)) for other, each in zip("MNK", sizes, strict=True)
        }
        times = gemm_time(gpu, *(others | {name: grown}).values(), mode="sustained").seconds
        assert np.min(times, initial=math.inf) > 0.99 * fastest


@pytest.mark.parametrize(
    ("sizes", "layout", "gpu", "first"),
    [
        ((4096, 4096, 10943), "TN", "H100", {"K": 10944}),
        ((4096, 10943, 4096), "TN", "H200", {"N": 10944}),
        ((4096, 50257, 4096), "TN", "L40S", {"N": 50272}),
        ((8192, 8192, 13823), "TN", "B200", {"K": 13824}),
        ((4096, 10943, 50257), "NN", "H100", {"N": 10944, "K": 50272}),
        ((4097, 4096, 4096), "TT", "H100", {"M": 4112}),
    ],
)
def test_in_fp8_rows_of_whole_16_bytes_are_proposed_first_for_libraries_take_no_others(sizes, layout, gpu, first):
    words = ("explain", *map(str, sizes), "--gpu", gpu, "--dtype", "fp8", "--layout", layout)
    (answer, *_) = invoke(*words, env={"COLUMNS": "300"}).output.splitlines()
    assert " and ".join(f"{name} = {size}" for name, size in first.items()) + " in place of " in answer
    assert "fp8 in rows of whole 16 bytes only: the price is that of the padded product." in answer
    explained = explain_product(find_gpu(gpu), sizes, "fp8", layout)
    below = {name: size - 16 for name, size in first.items()}
    for name in first:
        assert first | {name: below[name]} in [better.sizes for better in explained.better]
    padded = dict(zip("MNK", sizes, strict=True)) | first
    assert explain_product(find_gpu(gpu), tuple(padded.values()), "fp8", layout).seconds == explained.seconds


@pytest.mark.parametrize(
    ("sizes", "splits", "groups"),
    [
        # gpt-oss-20b, whose heads do not fill its hidden size.
        ((2880, 64, 8, 64), {(64, 64), (32, 128)}, {(64, 8), (32, 8)}),
        ((3072, 32, 8, 96), {(32, 96), (24, 128)}, {(32, 8), (24, 6)}),
        ((2560, 32, 4, 80), {(32, 80), (20, 128)}, {(32, 8), (20, 5)}),
    ],
)
def test_the_command_that_measures_other_heads_has_the_head_dims_and_key_heads_that_it_names(sizes, splits, groups):
    hidden, heads, kv_heads, head_dim = sizes
    window = {"window": 128, "windowed_layers": 2}
    model = ModelDimensions(4, hidden, 4096, heads, 32064, kv_heads=kv_heads, head_dim=head_dim, gated=True, **window)
    answer = sizing(find_gpu("H100"), Setting(model, 4096), Bounds(vary=("heads",), parameter_change=0.2))
    (said,) = (sentence(each) for each in answer.findings.remarks if "varied_splits" in each.template)
    words = said.split("pyperf-suite ")[1].split()
    assert invoke(*words[:1], "--list", *words[1:]).exit_code == 0
    axes = replace_axes(AttentionHeadsAxes(), parse_overrides(word for word in words if "=" in word))
    cases = {case.parameters for case in sweep(axes)}
    assert {(case.heads, case.head_dim) for case in cases} == splits
    assert groups <= {(case.heads, case.kv_heads) for case in cases}
    assert {case.seq_q for case in cases} == {4096}


def test_a_proposal_that_makes_a_token_slower_says_so():
    """More key-value heads in Qwen3-30B-A3B do more work a second, and a token has more work."""
    sizes = {"kv_heads": 4, "head_dim": 128, "experts": 128, "top_k": 8, "gated": True}
    setting = Setting(ModelDimensions(48, 2048, 768, 32, 151936, **sizes), 4096)
    answer = sizing(find_gpu("H100"), setting, Bounds(vary=("kv_heads", "vocab")))
    (first, *_) = answer.findings.remarks
    more = answer.search.alone["kv_heads"]
    assert more.is_faster
    assert more.time_ratio > 1.001
    assert "{cost} time a token" in first.template
    assert first.values["cost"].value == more.time_ratio - 1
    padded = sizing(find_gpu("H200"), Setting(GPT, 4096), Bounds(vary=("vocab",))).findings.remarks[0]
    assert "vocab 50257 ->" in padded.values["change"]
    assert "time a token" not in padded.template, "a padded vocabulary makes a token faster"


def test_a_narrow_table_of_sizes_keeps_the_speed():
    lines = invoke("size", *MODEL, "--gpu", "H200", "--vary", "vocab", env={"COLUMNS": "40"}).output.splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("  One dimension at a time"))
    assert lines[place + 1].endswith("speed, ×")


def test_a_small_product_in_fp8_is_priced_as_the_padded_one():
    odd, padded = (gemm_time("H100", 4096, n, 4096, "fp8") for n in (17, 32))
    assert odd.seconds == padded.seconds
    assert sum(odd.parts.values()) == pytest.approx(odd.seconds)
    assert odd.parts["ideal"] == pytest.approx(padded.parts["ideal"] * 17 / 32)


def test_tiles_and_waves_are_counted_as_the_law_of_tiling_does(made_up):
    (tiled,) = printed(replace(product(made_up, 2304, 4608 + 1, 512), tile=(256, 128, 1)), "tiles_m", "last")
    assert (tiled["tiles_m"], tiled["tiles_n"], tiled["waves"]) == (9, 37, "3 waves")
    assert tiled["last"].value == pytest.approx((333 - 2 * 132) / 132)
    assert tiled["used"].value == pytest.approx(333 / 396)
    assert tiled["area"].value == pytest.approx(2304 * 4609 / (333 * 256 * 128))


def printed(explained, *names):
    values = [each.values for each in explained.findings.remarks]
    return [each for each in values if set(names) <= set(each)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("0x1x1", "No product has m = 0"),
        ("1x1x10000000000", "give a size of 1 to"),
        ("8x8x8 --layout XY", "no layout 'XY'"),
        ("8x8", "'8x8' is no product"),
    ],
)
def test_a_product_that_cannot_be_is_refused(command, words, sentence):
    result = command("explain", *words.split(), "--gpu", "H200")
    assert (result.exit_code, sentence in result.output) == (2, True), result.output


def test_latent_attention_and_a_family_are_named_by_options(command, tmp_path):
    sizes = {"--layers": 4, "--hidden": 2048, "--heads": 16, "--ffn": 4096, "--vocab": 102400, "--head-dim": 192}
    latent = {"--latent-rank": 512, "--rope-head-dim": 64, "--value-head-dim": 128}
    config = {"model_type": "of_nobody_s", "num_hidden_layers": 4, "hidden_size": 2048, "num_attention_heads": 16,
              "intermediate_size": 4096, "vocab_size": 102400, "kv_lora_rank": 512, "q_lora_rank": None,
              "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = [str(word) for pair in (sizes | latent).items() for word in pair]
    usual = ("--gpu", "H200", "--seq", "2048", "--vary", "kv_heads", "--json")
    by_hand = command("size", *options, *usual)
    read = command("size", "--config", str(tmp_path), "--family", "youtu", "--not-tied", *usual)
    assert by_hand.exit_code == read.exit_code == 0
    assert json.loads(by_hand.stdout) == json.loads(read.stdout)
    assert command("size", *options, "--query-rank", "768", *usual).stdout != by_hand.stdout
    experts = command("size", *options, "--experts", "8", "--top-k", "2", "--ep", "4", *usual)
    assert "experts shared by 4" in experts.stdout
    missing = command("size", *options, "--family", "youtu", *usual)
    assert missing.exit_code == 2
    assert "--family youtu says how --config is read" in missing.stderr
