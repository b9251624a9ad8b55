"""The answers of `size` and `explain` are whole: sentences, tables, pictures, JSON, and one sentence for bad input."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from click.testing import CliRunner

from pyperf_suite.advise.product import TiledProduct, contiguous, explain_product, findings_of_product
from pyperf_suite.advise.sizing.as_json import sizing_as_json
from pyperf_suite.advise.sizing.candidates import Bounds
from pyperf_suite.advise.sizing.causes import saved, spent_by
from pyperf_suite.advise.sizing.checks import checks
from pyperf_suite.advise.sizing.heat_maps import heat_maps
from pyperf_suite.advise.sizing.prices import LawPrices
from pyperf_suite.advise.sizing.report import change_of, findings_of_sizing, sizing
from pyperf_suite.advise.sizing.search import judged
from pyperf_suite.advise.sizing.setting import Setting
from pyperf_suite.cli import main
from pyperf_suite.commands import size as advise_commands
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.explained import MEANINGS, legend
from pyperf_suite.render.text import sentence as sentence_of
from pyperf_suite.spec.findings import Quantity

GPT = ModelDimensions(layers=4, hidden=2560, ffn=10240, heads=32, vocab=50257, bias=True)
MODEL = ("--layers", "4", "--hidden", "2560", "--heads", "32", "--ffn", "10240", "--vocab", "50257", "--not-gated")
H200 = find_gpu("H200")


@pytest.fixture
def command(made_up, monkeypatch):
    """The command line over the made-up laws; its result for arguments."""
    monkeypatch.setattr(advise_commands, "_prices", lambda laws, dtype: made_up)
    return lambda *arguments: CliRunner().invoke(main, list(arguments), catch_exceptions=False)


@pytest.fixture
def found(made_up):
    return sizing(H200, Setting(GPT, 2048), Bounds(memory_bytes=1e9), made_up)


def test_the_work_of_a_step_adds_up_to_its_time(made_up):
    setting = Setting(GPT, 2048, micro_batch=2)
    (spent,), (candidate,) = spent_by([setting], made_up), judged([setting], made_up)
    assert math.fsum(part.seconds for part in spent) == pytest.approx(candidate.seconds)


def test_a_saving_is_told_with_its_cause(made_up):
    here, padded = Setting(GPT, 2048), Setting(GPT.resized(vocab=50304), 2048)
    present, other = spent_by([here, padded], made_up)
    _, candidate = judged([here, padded], made_up)
    ((cause, share), *_) = saved(present, other, candidate, here)
    assert cause == "logits: alignment"
    assert share == pytest.approx(1 - candidate.time_ratio, rel=0.02)


def test_rules_are_checked_with_what_they_are_worth(made_up):
    told = {check.rule: check for check in checks(Setting(GPT, 2048), made_up, memory_limit_bytes=1e15)}
    vocab, head_dim = told["vocab is a multiple of 64"], told["head_dim is a multiple of 64"]
    assert not vocab.kept
    assert vocab.other.setting.model.vocab == 50304
    assert vocab.other.is_faster
    assert not head_dim.kept
    assert head_dim.other.setting.model.head_dim == 64
    ffn = told["ffn is a multiple of 64"]
    assert ffn.kept
    assert ffn.other.is_slower, "breaking the rule costs"
    hidden = told["hidden is a multiple of 64"]
    assert hidden.kept
    assert (hidden.other.setting.model.hidden, hidden.other.setting.model.heads) == (2561, 32)
    assert hidden.other.is_slower
    assert not told["the micro-batch is as large as memory lets it be"].kept


def test_a_micro_batch_that_memory_has_no_larger_one_for_is_as_large_as_it_can_be(made_up):
    told = {check.rule: check.kept for check in checks(Setting(GPT, 2048), made_up, memory_limit_bytes=1e9)}
    assert told["the micro-batch is as large as memory lets it be"]


def test_the_answer_names_the_error_the_loss_and_the_gain(found, made_up):
    findings = findings_of_sizing(found, made_up)
    values = [each.values for each in findings.remarks]
    assert {"law": "gemm", "error": Quantity(0.01, "%")} in values
    assert ("attention", "head_dim") in [(each.get("part"), each.get("cause")) for each in values]
    proposals = [each for each in values if "change" in each]
    first = max((each for each in found.search.alone.values() if each.is_faster), key=lambda each: each.speed)
    assert proposals[0]["faster"].high >= first.low
    assert proposals[-1]["change"] == change_of(max(found.search.pareto, key=lambda candidate: candidate.speed))
    titles = [table.title for table in findings.tables]
    assert len(titles) == 4
    assert all(len(row) == len(table.columns) for table in findings.tables for row in table.rows)


def test_every_cause_of_the_laws_is_said_what_it_is():
    laws = LawPrices(H200)
    one = np.array([1024])
    explained = (
        laws.gemm("TN", one, one, one),
        laws.attention(True, False, one, one, one // 128, one // 128, one // 8),
        laws.memory_bound(one << 20),
        laws.collective("all_reduce", one << 10, one // 128),
    )
    causes = {cause for each in explained for cause in each.parts} - {"ideal"}
    assert causes <= set(MEANINGS)
    assert legend(["wave", "tile"]) == f"Causes: tile, {MEANINGS['tile']}; wave, {MEANINGS['wave']}."


@pytest.mark.parametrize("gpu", ["V100", "T4", "H200"])
def test_attention_is_priced_in_the_16_bits_that_a_gpu_has(gpu):
    spec, one = find_gpu(gpu), np.array([8])
    for dtype in ("fp32", "fp16"):
        assert LawPrices(spec, dtype).attention(True, False, one, 128 * one, one, one, 8 * one).seconds > 0


def test_the_loss_that_is_told_is_what_the_ideal_time_leaves_of_the_step(found, made_up):
    total = sum(part.seconds for part in found.spent)
    beyond = 1 - sum(part.causes.get("ideal", 0) for part in found.spent) / total
    shares = [each.values["share"] for each in findings_of_sizing(found, made_up).remarks if "share" in each.values]
    assert shares[0].value == pytest.approx(beyond)


def test_a_model_that_nothing_beats_is_told_so(made_up_with):
    model = ModelDimensions(layers=4, hidden=4096, ffn=14336, heads=32, kv_heads=8, vocab=128256, gated=True)
    prices = made_up_with(error_percent=10.0)
    answer = findings_of_sizing(sizing(H200, Setting(model, 2048), Bounds(), prices), prices)
    assert any(sentence.startswith("Keep the dimensions") for sentence in map(sentence_of, answer.remarks))


def test_a_model_without_neighbours_is_told_so(made_up):
    alone = sizing(H200, Setting(GPT, 2048), Bounds(vary=("kv_heads",)), made_up)
    assert "There is no neighbour to compare with: none differs only in kv_heads." in map(
        sentence_of, findings_of_sizing(alone, made_up).remarks
    )


def test_the_whole_answer_is_json(found):
    told = json.loads(json.dumps(sizing_as_json(found)))
    assert told["present"]["speed"] == 1
    assert told["pareto"][0]["changes"]
    assert told["held_out_error_percent"]["gemm"] == 1.0
    assert told["memory_limit_bytes"] >= told["present"]["memory_bytes"]
    assert sum(part["seconds"] for part in told["work"]) == pytest.approx(told["present"]["micro_batch_s"])
    assert {check["rule"] for check in told["checks"]} >= {"vocab is a multiple of 64"}
    assert math.fsum(part["seconds"] for part in told["work"]) == pytest.approx(told["present"]["micro_batch_s"])


def test_heat_maps_have_the_present_model_at_one(made_up):
    for figure in heat_maps(Setting(GPT, 2048, tp=2), made_up, "H200", 0.15):
        ((heat_map,),) = figure.rows
        row, column = heat_map.here
        assert heat_map.values[row][column] == pytest.approx(1)
        assert len(heat_map.values) == len(heat_map.y)
        assert {len(values) for values in heat_map.values} == {len(heat_map.x)}
        assert sum(math.isfinite(value) for values in heat_map.values for value in values) > 10


@pytest.mark.slow
def test_size_prints_tables_and_leaves_pictures_in_the_folder_named(command, tmp_path):
    result = command("size", *MODEL, "--gpu", "h200", "--output", str(tmp_path / "sizes"))
    assert result.exit_code == 0, result.output
    assert "vocab 50257 -> 50304" in result.output
    assert {path.suffix for path in (tmp_path / "sizes").iterdir()} == {".png", ".md"}
    assert "sizing_hidden_heads.png" in (tmp_path / "sizes" / "sizing.md").read_text()


def test_size_writes_nothing_unless_a_folder_is_named(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert command("size", *MODEL, "--gpu", "H200", "--json").exit_code == 0
    assert list(tmp_path.iterdir()) == []


def test_size_reads_a_config(command, tmp_path):
    config = {"model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4,
              "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
              "max_position_embeddings": 2048}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    result = command("size", "--config", str(tmp_path / "config.json"), "--gpu", "H200", "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)["present"]["setting"]
    assert (told["seq"], told["model"]["kv_heads"], told["model"]["gated"]) == (2048, 4, True)
    longer = command("size", "--config", str(tmp_path), "--gpu", "H200", "--seq", "4096", "--json")
    assert json.loads(longer.stdout)["notes"] == [
        "Sequences of 4096 tokens are beyond the 2048 that the model's configuration names."
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--gpu", "H200", "--hidden", "0"), "--hidden has to be at least 1"),
        (("--gpu", "H200", "--hidden", "-5"), "--hidden has to be at least 1"),
        (("--gpu", "H200", "--kv-heads", "5"), "32 heads cannot share 5 key-value heads"),
        (("--gpu", "H200", "--heads", "33"), "cannot be divided into 33 heads"),
        (("--gpu", "H200", "--tp", "3"), "take tp = 2 or 4"),
        (("--gpu", "H200", "--ffn", "99999999999"), "beyond the"),
        (("--gpu", "H2000"), "H200"),
        (("--gpu", "H200", "--dtype", "fp8", "--vary", "depth"), "choose from hidden"),
        (("--gpu", "H200", "--vary", ""), "write names, as in heads,vocab"),
        (("--gpu", "H200", "--head-dims", "64,many"), "write numbers"),
        (("--gpu", "H200", "--head-dims", ""), "write numbers"),
        (("--gpu", "H200", "--head-dims", "64,9999999999"), "head dimensions of 1 to 512"),
        (("--gpu", "H200", "--head-dim", "100000"), "A model of head_dim = 100000 is beyond"),
        (("--gpu", "H200", "--parameter-change", "nan"), "between 0 and 100 %, but nan"),
        (("--gpu", "H200", "--reach", "1000"), "between 0 and 100 %, but 1000"),
        (("--gpu", "H200", "--profile", "careful"), "choose from quick, standard, full"),
        (("--gpu", "A100", "--dtype", "fp8"), "no units for 'fp8'"),
        (("--gpu", "H200", "--seq", "-1"), "seq has to lie"),
        (("--gpu", "H200", "--seq", "0"), "seq has to lie"),
        (("--gpu", "H200", "--calibration", "absent.npz"), "no calibration at absent.npz"),
    ],
)
def test_what_cannot_be_sized_is_one_sentence_and_exit_code_2(command, arguments, words):
    result = command("size", *MODEL, *arguments)
    assert result.exit_code == 2
    assert words in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_model_without_its_dimensions_is_asked_for_them(command):
    result = command("size", "--gpu", "H200", "--hidden", "4096")
    assert result.exit_code == 2
    assert "layers, heads, ffn, vocab are missing" in result.output


def product(prices, m, n, k):
    return explain_product(H200, prices, TiledProduct(m, n, 128, 128, 1, H200.sms), m, n, k, "bf16", "TN")


def test_an_odd_product_is_explained_with_the_size_that_mends_it(made_up):
    explained = product(made_up, 4096, 50257, 4096)
    assert math.fsum(explained.causes.values()) == pytest.approx(explained.seconds)
    assert explained.divisors == {"M": 4096, "N": 1, "K": 4096}
    assert {(better.dimension, better.size) for better in explained.better} >= {("N", 50264), ("N", 50256)}
    text = " ".join(map(sentence_of, findings_of_product(explained).remarks))
    assert "N, along which rows lie in memory, below the 8" in text
    assert "bound by computing" in text


@pytest.mark.parametrize(("layout", "names"), [("TN", ["N", "K"]), ("NN", ["N", "K"]), ("NT", ["M", "N"])])
def test_only_dimensions_along_which_rows_lie_have_to_divide(layout, names):
    assert contiguous(layout) == names


def test_a_better_size_is_told_with_what_the_law_may_err(made_up, made_up_with):
    sure = product(made_up, 4096, 50257, 4096)
    assert all(better.low < better.rate_ratio < better.high for better in sure.better)
    (row,) = (row for row in findings_of_product(sure).tables[1].rows if row[:3] == ("N", 50257, 50264))
    assert row[-1].value == pytest.approx(2, abs=0.005)
    unsure = product(made_up_with(error_percent=60.0), 4096, 50257, 4096)
    assert not any(better.is_sure for better in unsure.better)
    assert "Next good sizes" not in [table.title for table in findings_of_product(unsure).tables]


def test_a_product_of_good_sizes_is_left_alone(made_up):
    explained = product(made_up, 4096, 8192, 4096)
    assert explained.better == ()
    assert any("No size" in sentence for sentence in map(sentence_of, findings_of_product(explained).remarks))


def test_a_product_of_few_rows_is_bound_by_memory(made_up):
    assert not product(made_up, 8, 8192, 4096).is_compute_bound


def test_tiles_and_waves_are_counted_as_the_law_of_tiling_does():
    tiled = TiledProduct(m=2304, n=4608 + 1, rows=256, columns=128, splits=1, sms=108)
    assert (tiled.tiles_m, tiled.tiles_n, tiled.units, tiled.waves) == (9, 37, 333, 4)
    assert tiled.last_wave == pytest.approx(9 / 108)
    assert tiled.wave_efficiency == pytest.approx(333 / 432)
    assert tiled.tile_efficiency == pytest.approx(2304 * 4609 / (333 * 256 * 128))


@pytest.mark.parametrize(("sizes", "layout"), [((0, 1, 1), "TN"), ((1, 1, 1 << 40), "TN"), ((8, 8, 8), "XY")])
def test_a_product_that_cannot_be_is_refused(made_up, sizes, layout):
    tiled = TiledProduct(8, 8, 128, 128, 1, H200.sms)
    with pytest.raises(UserError):
        explain_product(H200, made_up, tiled, *sizes, "bf16", layout)
