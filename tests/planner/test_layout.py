"""Layouts: all that divide, priced and ranked; which rules hold, what does not fit; and one sentence for bad input."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws.transformer import ModelDimensions
from pyperf_suite.planner.layout import grid
from pyperf_suite.planner.layout.grid import Cluster, Training, held_to, layouts
from pyperf_suite.planner.layout.plan import (
    KEYS,
    Planned,
    exactly,
    given_layouts,
    layout_of,
    planned,
    rules,
    smallest_network,
)
from pyperf_suite.planner.layout.report import findings_of_layouts
from tests.commands import invoke
from tests.models import LLAMA, MIXTRAL
from tests.records import printed_lines, printed_values

A100 = find_gpu("A100")
SMALL = ModelDimensions(12, 768, 3072, 12, 50304, bias=True, tied=True, positions=1024)
NODE = Cluster(A100, 8, 8, A100.memory_bytes)
EIGHT_NODES = Cluster(A100, 64, 8, A100.memory_bytes)
OPTIONS = ("--layers", "32", "--hidden", "4096", "--heads", "32", "--kv-heads", "8", "--ffn", "14336", "--vocab",
           "128256", "--gpu", "A100", "--gpus", "64", "--global-batch", "512", "--seq", "4096")  # fmt: skip


def with_options(*changed: str) -> tuple[str, ...]:
    """The usual options with some of them replaced, added or, where the value is empty, left out."""
    options = dict(zip(OPTIONS[::2], OPTIONS[1::2], strict=True)) | dict(zip(changed[::2], changed[1::2], strict=True))
    return tuple(part for pair in options.items() if pair[1] for part in pair)


def command(*arguments: str) -> Result:
    return invoke("layout", *arguments)


@pytest.fixture(scope="module")
def llama() -> Planned:
    return planned(Training(LLAMA, 512, 4096), EIGHT_NODES)


@pytest.mark.parametrize("model", [LLAMA, MIXTRAL], ids=["dense", "experts"])
def test_every_layout_uses_all_gpus_and_divides(model: ModelDimensions) -> None:
    columns = layouts(Training(model, 48, 4096), EIGHT_NODES).columns
    ranks = columns["data"] * columns["tensor"] * columns["pipeline"] * columns["context"]
    assert np.all(ranks == 64)
    assert not np.any(48 % (columns["data"] * columns["micro_batch"]))
    assert not np.any(32 % (columns["pipeline"] * columns["chunks"]))
    assert not np.any((columns["data"] * columns["context"]) % columns["expert"])
    assert not np.any(model.experts % columns["expert"])
    assert columns["expert"].max() == model.experts
    assert columns["context"].max() > 1
    rows = np.stack(list(columns.values()), axis=1)
    assert len(np.unique(rows, axis=0)) == len(rows)


def test_what_fits_is_ranked_by_time_and_parts_add_up(llama: Planned) -> None:
    ranked = llama.ranked
    assert np.all(np.diff(llama.seconds[ranked]) >= 0)
    assert np.all(llama.memory_bytes[ranked] <= llama.cluster.usable_bytes)
    assert llama.seconds == pytest.approx(sum(llama.parts.values()))
    assert all(np.all(part >= 0) for part in (*llama.parts.values(), *vars(llama.need).values()))
    best = llama.best
    assert best.tokens_per_s == pytest.approx(512 * 4096 / best.seconds)
    assert 0.4 < best.mfu < 0.8
    assert best.over_bytes == 0


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 8), st.sampled_from([1, 2, 4, 6, 8]), st.integers(1, 96), st.sampled_from([100, 1024, 3000, 4096]),
    st.booleans(), st.sampled_from([LLAMA, MIXTRAL, SMALL]), st.sampled_from([4, 40, 80]),
)  # fmt: skip
def test_whatever_is_asked_is_planned_or_refused_in_a_sentence(
    nodes: int, per_node: int, batch: int, seq: int, fused: bool, model: ModelDimensions, gib: int
) -> None:
    cluster = Cluster(A100, nodes * per_node, per_node, gib * 2**30)
    refusal = None
    try:
        plans = planned(Training(model, batch, seq, fused), cluster)
    except UserError as refused:
        refusal = str(refused)
    if refusal is not None:
        assert "bytes) more than" in refusal or "in any way" in refusal
        return
    assert np.all(np.isfinite(plans.seconds))
    assert all(rule.agrees in (True, False, None) for rule in rules(plans))
    assert int(plans.fits.sum()) == len(plans.ranked)
    assert findings_of_layouts(plans, 3).tables


def test_flops_are_counted_as_practitioners_do(llama: Planned) -> None:
    for predicted in map(llama.at, llama.ranked[[0, -1]].tolist()):
        passes = 4 if predicted.plan.recompute == "layers" else 3
        # params_B x passes x 2 x seq x global batch / (seconds x GPUs x 1e3), in TFLOP/s.
        recipe = LLAMA.parameters / 1e9 * passes * 2 * 4096 * 512 / (predicted.seconds * 64 * 1e3)
        assert predicted.flop_per_s / 1e12 == pytest.approx(recipe)


@pytest.mark.parametrize(
    ("framework", "stages", "uncut"),
    [
        ("megatron", {0, 1}, ()),
        ("fsdp2", {0, 2, 3}, ("chunks",)),
        ("torchtitan", {0, 2, 3}, ()),
        ("deepspeed", {0, 1, 2, 3}, ("chunks", "context")),
        ("ddp", {0}, ("tensor", "pipeline", "context")),
    ],
)
def test_a_framework_has_the_layouts_that_it_runs(framework: str, stages: set[int], uncut: tuple[str, ...]) -> None:
    plans = planned(Training(SMALL, 512, 1024, framework=framework), NODE)
    columns = plans.grid.columns
    assert set(columns["zero_stage"].tolist()) == stages
    assert all((columns[name] == 1).all() for name in uncut)
    assert (columns["data"] * columns["context"])[columns["zero_stage"] == 0].min() >= 1
    assert set(plans.constants) == {framework}
    if framework == "deepspeed":
        assert not np.any((columns["pipeline"] > 1) & (columns["zero_stage"] > 1))
    with pytest.raises(UserError, match=f"that divides and {framework} runs has"):
        held_to(plans.grid, {"zero_stage": 3 if 3 not in stages else 4}, framework)


def test_memory_is_sure_or_may_not_be_enough(llama: Planned) -> None:
    need, room = llama.need, llama.cluster.usable_bytes
    assert set(llama.verdicts.tolist()) == {0, 1, 2}
    assert need.most[llama.verdicts == 0].max() <= room < need.least[llama.verdicts == 2].min()
    assert (need.least < llama.memory_bytes).all()
    # A layout that surely fits is recommended; only layouts that may not fit are faster.
    assert llama.surest is not None
    faster = [llama.at(int(place)) for place in llama.ranked if llama.seconds[place] < llama.surest.seconds]
    assert {each.verdict for each in faster} <= {"may not fit"}
    assert findings_of_layouts(llama, 3).remarks[0].values["what"] == "Fastest that fits surely is "
    # A layout that leaves less than a twentieth of the memory free is still ranked where nothing else is left.
    tight = replace(EIGHT_NODES, memory_bytes=float(llama.memory_bytes.min()))
    assert planned(Training(LLAMA, 512, 4096), tight).best.verdict == "may not fit"


@pytest.mark.parametrize(
    ("texts", "named", "engines"),
    [
        (("dp=32,tp=2,mb=1", "dp=64,zero=3,mb=1"), None, ["deepspeed", "deepspeed"]),
        (("dp=32,cp=2", "dp=64,zero=3"), None, ["torchtitan", "torchtitan"]),
        (("dp=32,tp=2,mb=1", "dp=64,mb=1"), None, ["megatron", "megatron"]),
        (("dp=64,zero=1", "dp=64,zero=3"), None, ["deepspeed", "deepspeed"]),
        (("dp=32,tp=2,mb=1", "dp=64,zero=3,mb=1"), "megatron,torchtitan", ["megatron", "torchtitan"]),
        (("dp=64,zero=3",), None, ["torchtitan"]),
        (("dp=64,offload=cpu",), None, ["torchtitan"]),
        (("dp=64,offload=nvme",), None, ["deepspeed"]),
    ],
)
def test_layouts_are_compared_under_one_framework_unless_several_are_named(
    texts: tuple[str, ...], named: str | None, engines: list[str]
) -> None:
    assert [name for name, _ in given_layouts(texts, 64, named)] == engines


def test_a_compared_layout_that_names_no_stage_of_zero_has_the_one_that_it_has_alone() -> None:
    """Whatever the other layout names, unless no framework runs both so."""
    for other in ("dp=64", "dp=64,zero=0", "dp=64,zero=2", "dp=64,zero=3"):
        (_, first), _ = given_layouts(("dp=32,tp=2,mb=2", other), 64, None)
        assert first == given_layouts(("dp=32,tp=2,mb=2",), 64, None)[0][1]
    (_, sharded), _ = given_layouts(("dp=32,tp=2", "dp=64,zero=3"), 64, "torchtitan")
    assert sharded["zero_stage"] == 3


def test_a_ranking_is_of_one_framework_the_first_under_which_anything_fits() -> None:
    def engines(gpus: int, framework: str | None = None, **fixed: int) -> set[str]:
        cluster = Cluster(A100, gpus, min(8, gpus), A100.memory_bytes)
        return set(planned(Training(LLAMA, 512, 4096, framework=framework), cluster, fixed=fixed).constants)

    assert engines(64) == {"megatron"}
    assert engines(64, zero_stage=3) == {"torchtitan"}
    assert engines(64, "megatron,torchtitan") == {"megatron", "torchtitan"}
    # States of 18 bytes a parameter over two GPUs of 80 GiB.
    assert engines(2, zero_stage=3) == {"torchtitan"}


MODEL_OPTIONS = with_options("--gpus", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--gpus", "61"), "61 GPUs do not fill nodes of 8: take 56 or 64"),
        (("--gpus", "61", "--gpus-per-node", "61"), "61 GPUs cannot share this model"),
        (("--gpus", "-8"), "--gpus has to lie between 1 and 1048576, but -8"),
        (("--global-batch", "0"), "'--global-batch': 0 is not in the range"),
        (("--gpu", "H2000"), "no GPU 'H2000'"),
        (("--memory", "nan"), "'nan' is not a size of memory"),
        (("--network", "fast"), "'fast' is not the rate of a network"),
        (("--link", "NVLink9"), "'NVLink9' is no link within a node"),
        (("--tp", "3"), "No layout that divides has TP 3: take 1, 2, 4, 8, 16, 32."),
        (("--tp", "8", "--pp", "16"), "has PP 16 with TP 8: take 1, 2, 4, 8."),
        (("--framework", "jax"), "Nothing is known of the framework 'jax'"),
        (("--framework", "fsdp2", "--virtual-pp", "2"), "No layout that divides and fsdp2 runs has virtual"),
        (("--dp", "64", "--zero", "0"), "bytes) more than the 76.0 GiB that are usable; the nearest that"),
        (("--gpus", "1", "--offload", "none"), "are usable: take more GPUs, or --offload."),
        (("--offload", "disk"), "Nothing can be offloaded as 'disk'"),
        (("--offload", "cpu", "--framework", "megatron"), "megatron does not offload 'cpu'"),
        (("--offload", "cpu", "--host-memory", "1"), "of the host's memory for each"),
        (("--exactly", "dp=8,tp=4"), "are 32 GPUs, not 64"),
        (("--price", "nan"), "nan is not a finite number"),
        # Whose number of GPUs is that of the layout.
        (("--gpus", "", "--exactly", "dp=8,xp=4"), "'xp=4' is no part of a layout"),
        (("--gpus", "", "--exactly", "dp=8,tp=-4"), "'tp=-4' needs a whole number above 0"),
        (("--gpus", "", "--exactly", "dp=8,mb=48"), "has micro-batch 48"),
        (("--gpus", "", "--exactly", "dp=8,offload=cpu,zero=1"), "has ZeRO 1"),
        (("--gpus", "", "--exactly", "dp=8,offload=disk"), "offload is one of none, optimizer, cpu, nvme"),
        (("--gpus", "", "--exactly", "dp=8", "--tp", "2"), "leave out the other, and options of single axes"),
        (("--gpus", "", "--exactly", "dp=8", "--dtype", "fp8"), "A100 SXM has no units for 'fp8'"),
        (("--gpus", ""), "--gpus is missing"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(arguments: tuple[str, ...], sentence: str) -> None:
    result = command(*with_options(*arguments))
    assert result.exit_code == 2
    assert sentence in " ".join(result.output.split())
    assert "Traceback" not in result.output


def message(*arguments: str) -> dict[str, Any]:
    result = command(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout))


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_narrow_table_keeps_the_time_and_whether_it_fits_and_says_in_its_heading_what_all_share(columns: str) -> None:
    arguments = with_options("--gpus", "8", "--cp", "1", "--recompute", "layers")
    lines = invoke("layout", *arguments, env={"COLUMNS": columns, "LINES": "40"}).output.splitlines()
    (place,) = (number for number, line in enumerate(lines) if line.startswith("  Fastest layouts"))
    head = next(number for number in range(place, place + 6) if lines[number].startswith("  DP"))
    shared = " ".join(" ".join(lines[place:head]).split())
    assert all(text in shared for text in ("all with", "CP 1", "recompute layers", "offload none"))
    assert "ZeRO" in shared + lines[head]
    assert {"iteration", "memory"} <= {*lines[head].split()}
    assert "CP" not in lines[head].split()
    assert any(lines[head + 1 + row].endswith(("fits", "may not fit")) for row in range(3))


@pytest.mark.slow
def test_one_given_layout_is_priced_as_in_the_ranking(llama: Planned) -> None:
    place = int(llama.ranked[40])
    layout = llama.at(place).plan
    text = ",".join(f"{key}={getattr(layout, name)}" for key, name in KEYS.items())
    for gpus in ((), ("--gpus", "64")):
        (found,) = printed_lines(message(*MODEL_OPTIONS, *gpus, "--exactly", text), "Layouts")
        assert found["iteration"] == pytest.approx(float(llama.seconds[place]), rel=1e-9)
        assert found["from"] < found["iteration"] < found["to"]
        assert found["memory"] == llama.at(place).verdict
    text = command(*MODEL_OPTIONS, "--exactly", "dp=64,zero=0,mb=8").output
    assert "does not fit" in " ".join(text.split())


def test_where_nothing_surely_fits_layouts_that_offload_are_ranked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a model with experts on one node, of which the fastest layout without offload may not fit."""
    training, node = Training(MIXTRAL, 64, 4096), replace(NODE, memory_bytes=120 * 2**30)
    surely = planned(training, node)
    assert surely.surest is not None
    assert surely.surest.plan.offload != "none"
    assert surely.best.plan.offload == "none", "the faster layout that may not fit is still named"
    heads = [remark.values.get("what") for remark in findings_of_layouts(surely, 3).remarks]
    assert heads[:2] == ["Fastest that fits surely is ", "Faster, if it fits, is "]
    without = planned(replace(training, offloads=("none",)), node)
    assert (without.surest, without.best.verdict) == (None, "may not fit")
    # The answer is that without offload where layouts with it would be too many.
    monkeypatch.setattr(grid, "MOST_LAYOUTS", len(without.grid))
    assert planned(replace(training, framework="megatron"), node).best.plan == without.best.plan


def test_layouts_of_unequal_numbers_of_gpus_are_not_compared() -> None:
    result = command(*MODEL_OPTIONS, "--compare", "dp=4", "dp=4,tp=2")
    assert result.exit_code == 2
    assert "dp=4 (4 GPUs) and dp=4,tp=2 (8 GPUs) cannot be compared" in " ".join(result.output.split())
    assert command(*MODEL_OPTIONS, "--gpus", "8", "--compare", "tp=4", "tp=2").exit_code == 0


@pytest.mark.slow
def test_two_layouts_are_compared_the_same_way_round_both_ways() -> None:
    a, b = "dp=16,tp=4,mb=4", "tp=8,pp=8,zero=0"
    found = [message(*MODEL_OPTIONS, "--gpus", "64", "--compare", *pair) for pair in ((a, b), (b, a))]
    (first,), (second,) = (printed_values(each, "chance", "gain") for each in found)
    assert {first["name"], second["name"]} == {"A", "B"}
    assert first["chance"] == pytest.approx(second["chance"])
    times = [each["iteration"] for each in printed_lines(found[0], "Layouts")]
    assert (first["name"] == "A") == (times[0] < times[1])
    assert ", confidence " in " ".join(command(*MODEL_OPTIONS, "--compare", a, "dp=64,zero=3").output.split())
    offloads = " ".join(
        command(*MODEL_OPTIONS, "--compare", "dp=64,zero=3", "dp=64,offload=cpu", "--all").output.split()
    )
    assert "A is faster by" in offloads


@pytest.mark.slow
def test_what_fits_no_gpu_is_offloaded_and_what_is_asked_for_is_ranked_too() -> None:
    training, alone = Training(LLAMA, 16, 4096), Cluster(A100, 1, 1, A100.memory_bytes)
    plans = planned(training, alone)
    assert plans.best.plan.offload != "none"
    assert plans.best.memory["host"] == pytest.approx(16 * LLAMA.parameters, rel=0.01)
    assert "offload" in plans.best.parts
    text = str([remark.template for remark in findings_of_layouts(plans, 3).remarks])
    assert "Offload needs up to" in text
    # Drives are left where the host has too little memory, and parameters on them cost most.
    small = planned(training, replace(alone, host=replace(alone.hosted, memory_bytes=64 * 2**30)))
    assert small.best.plan.offload == "nvme"
    assert small.best.seconds > plans.best.seconds
    with pytest.raises(UserError, match="take more GPUs"):
        planned(replace(training, offloads=("none",)), alone)
    both = planned(Training(LLAMA, 64, 4096, offloads=("none", "cpu")), NODE)
    assert both.best.plan.offload == "none"
    names = {str(both.at(int(place)).plan.offload) for place in both.ranked}
    assert names == {"none", "cpu"}
    columns = both.grid.columns
    assert set(columns["zero_stage"][columns["offload"] > 0].tolist()) == {3}


@pytest.mark.slow
def test_the_days_and_dollars_of_a_training() -> None:
    found = message(*MODEL_OPTIONS, "--gpus", "64", "--tokens", "1e11", "--price", "2", "--top", "9")
    (days,) = printed_values(found, "days")
    first = float(days["days"].split()[0])
    rates = [each["tokens/s"] for each in printed_lines(found, "Fastest") if each["memory"] == "fits"]
    assert first == pytest.approx(1e11 / rates[0] / 86400, rel=0.01)
    billion, whole = (float(each["dollars"].split()[0].replace(",", "")) for each in printed_values(found, "dollars"))
    assert whole == pytest.approx(first * 24 * 2 * 64, rel=0.01)
    assert billion == pytest.approx(whole / 100, rel=0.01)


def test_a_network_that_is_enough_costs_no_more_than_five_percent() -> None:
    training, layout = Training(LLAMA, 512, 4096), layout_of("dp=64,zero=3,mb=2", 64, None)
    found = exactly(training, EIGHT_NODES, A100, layout)
    rate = smallest_network(found, 0)
    assert rate is not None
    endless, enough, less = (
        float(exactly(training, replace(EIGHT_NODES, network=each), A100, layout).seconds[0])
        for each in (1e15, rate, rate / 1.1)
    )
    assert enough <= 1.05 * endless < less
