"""What the collectives probe tells is what the machine that made the records did."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.laws.dimensions import ModelDimensions
from pyperf_suite.laws.network.traffic import Workload, ddp, verdict
from pyperf_suite.operators.collective import CollectiveParameters
from pyperf_suite.probes.collectives.curves import curves_of
from pyperf_suite.probes.collectives.findings import explain
from pyperf_suite.probes.collectives.peaks import link_peak
from pyperf_suite.probes.collectives.probe import Collectives, CollectivesAxes
from pyperf_suite.probes.collectives.verdicts import Training, bound_below_s
from pyperf_suite.render.picture import draw
from pyperf_suite.render.run_report import run_as_json
from pyperf_suite.runner.case import Case
from pyperf_suite.runner.record import Record
from pyperf_suite.runner.results import RunFolder
from pyperf_suite.spec.axes import NO, YES, Sizes
from pyperf_suite.spec.findings import Findings, Table

PROBE = Collectives()
LADDER = Sizes(64, 64 * 2**20, 16)
HOPPERS = {"kind": "cuda", "model": "NVIDIA H200", "link": "nvlink4x18", "count": 8}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


def cases(**changed: object) -> list[Case]:
    usual = CollectivesAxes(
        op=("all_reduce",), size=(LADDER,), dtype=("float32",), ranks=(4,), implementation=("gloo",)
    )
    return PROBE.sweep(replace(usual, **changed))  # type: ignore[arg-type]


def said(findings: Findings, words: str) -> str:
    """The one sentence that has these words."""
    (sentence,) = [sentence for sentence in findings.sentences if words in sentence]
    return sentence


def table(findings: Findings, words: str) -> Table:
    (found,) = [table for table in findings.tables if words in table.title]
    return found


def column(found: Table, name: str) -> list[str]:
    place = found.columns.index(name)
    return [row[place] for row in found.rows]


def test_no_records_tell_nothing() -> None:
    assert explain([]) == Findings()


def test_the_table_is_nccl_tests_with_rates_by_its_factors(network: Any) -> None:
    found = table(explain(network().records(cases(size=(Sizes(2**30, 2**30),)))), "all_reduce float32, 4 ranks, gloo")
    assert found.columns[:9] == (
        *("size B", "count", "type", "redop", "root"),
        *("p50 us", "algbw GB/s", "busbw GB/s", "#wrong"),
    )
    (row,) = found.rows
    seconds = 20e-6 + 1.5 * 2**30 / 10e9
    assert row[:5] == ("1073741824", "268435456", "float32", "sum", "-1")
    assert float(row[5]) == pytest.approx(seconds * 1e6, rel=1e-3)
    assert float(row[6]) == pytest.approx(2**30 / seconds / 1e9, rel=1e-2)
    assert float(row[7]) == pytest.approx(1.5 * 2**30 / seconds / 1e9, rel=1e-2)
    assert row[8] == "0"


def test_the_highest_rate_is_told_beside_the_peak_of_the_links(network: Any) -> None:
    records = network(gb_per_s=225.0, identity=HOPPERS).records(cases(implementation=("nccl",), ranks=(8,)))
    sentence = said(explain(records), "busbw")
    assert re.search(r"217 GB/s busbw, 48% of 18 x NVLink 4's 450 at 64 MiB; 20.0 us for 64 B", sentence)
    assert column(table(explain(records), "all_reduce float32, 8 ranks, nccl"), "% of 450 GB/s")[-1].startswith("4")


@pytest.mark.parametrize(
    ("identity", "gb_per_s"),
    [
        (HOPPERS, 450),
        ({"kind": "cuda", "model": "NVIDIA A100-SXM4-80GB", "link": "nvlink3x12"}, 300),
        ({"kind": "cuda", "model": "NVIDIA B200", "link": "nvlink5x18"}, 900),
        ({"kind": "cuda", "model": "NVIDIA L40S", "link": "pcie"}, 31.5),
        ({"kind": "cuda", "model": "NVIDIA H100 PCIe", "link": "pcie"}, 63),
        ({"kind": "cuda", "model": "NVIDIA H200", "link": "none"}, None),
        ({"kind": "cuda", "model": "a GPU of tomorrow", "link": "nvlink9x36"}, None),
        ({"kind": "cpu", "model": "a CPU"}, None),
    ],
)
def test_the_peak_is_of_the_links_that_the_machine_has(identity: dict[str, Any], gb_per_s: float | None) -> None:
    peak = link_peak(identity)
    assert (peak and peak.gb_per_s) == gb_per_s


def test_in_place_stands_beside_out_of_place(network: Any) -> None:
    findings = explain(network().records(cases(in_place=(NO, YES))))
    found = table(findings, "all_reduce float32, 4 ranks, gloo")
    assert len(found.rows) == len(LADDER.ladder())
    assert column(found, "in place p50 us") == column(found, "p50 us")
    (text,) = findings.documents
    assert text.name == "nccl_tests.txt"
    assert "N/A" not in text.text


def test_the_text_is_that_of_nccl_tests_column_by_column(network: Any) -> None:
    records = network().records(cases(op=("all_reduce", "broadcast"), size=(Sizes(2**20, 2**20),)))
    (document,) = explain(records).documents
    rows = [line.split() for line in document.text.splitlines() if not line.startswith("#") and line]
    assert [row[:5] for row in rows] == [
        ["1048576", "262144", "float", "sum", "-1"],
        ["1048576", "262144", "float", "none", "0"],
    ]
    assert [float(cell) for cell in rows[0][5:9]] == pytest.approx([177.3, 5.91, 8.87, 0], abs=0.01)
    assert rows[0][9:] == ["N/A"] * 4
    assert document.text.count("# Out of bounds values : 0 OK") == 2
    # All rows and headings end in the same column.
    assert len({len(line) for line in document.text.splitlines() if " N/A" in line or "busbw" in line}) == 1


def test_wrong_elements_are_counted_and_their_times_left_out(network: Any) -> None:
    machine, asked = network(), cases()
    wrong = {"passed": False, "wrong": 7, "compared": 100, "message": "rank 1 has 7 of 100 elements wrong"}
    records = [machine.record(case, 0, place) for place, case in enumerate(asked)]
    records[-1] = machine.record(asked[-1], 0, 9, outcome="failed", verification=wrong, metrics={}, sampling={})
    findings = explain(records)
    found = table(findings, "all_reduce float32")
    assert column(found, "#wrong") == ["0"] * (len(asked) - 1) + ["7"]
    assert found.rows[-1][5:8] == ("-", "-", "-")
    assert "7 elements are wrong at 1 of its sizes" in findings.sentences[0]
    assert "# Out of bounds values : 7 FAILED" in findings.documents[0].text


def test_a_run_in_which_all_is_wrong_still_says_so(network: Any) -> None:
    wrong = {"passed": False, "wrong": 3, "compared": 9, "message": ""}
    (case,) = cases(size=(Sizes(64, 64),))
    findings = explain([network().record(case, 0, 0, outcome="failed", verification=wrong, metrics={}, sampling={})])
    assert "3 elements are wrong" in findings.sentences[0]


def test_torchs_path_and_graph_replay_are_columns_beside_ours(network: Any) -> None:
    paths = ("nccl", "nccl_graph", "c10d_nccl")
    machine = network(start_s=10e-6, added_s={"nccl_graph": -5e-6, "c10d_nccl": 10e-6}, identity=HOPPERS)
    findings = explain(machine.records(cases(implementation=paths, ranks=(8,))))
    found = table(findings, "times side by side")
    assert found.columns == ("size B", "nccl us", "nccl_graph us", "x nccl", "c10d_nccl us", "x nccl")
    assert found.rows[0][3].startswith("0.50 ")
    assert found.rows[0][5].startswith("2.00 ")
    assert re.match(r"c10d_nccl takes 1\.\d\d .* x the time up to 64 KiB", said(findings, "c10d_nccl takes"))
    assert "beside nccl (all_reduce, float32 among 8 ranks)" in said(findings, "nccl_graph takes")


def test_only_what_differs_in_one_thing_is_compared(network: Any) -> None:
    asked = cases(op=("all_reduce", "broadcast"), implementation=("nccl", "c10d_nccl"), in_place=(NO, YES))
    takes = [said.split(" takes ")[0] for said in explain(network().records(asked)).sentences if " takes " in said]
    assert [name for name in takes if "," not in name] == ["nccl in place", "c10d_nccl"]


def test_one_flag_compares_with_links_left_out(network: Any) -> None:
    asked = cases(implementation=("nccl",), peer_to_peer=(YES, NO))

    def without_links(parameters: CollectiveParameters, process: int) -> float:
        return 1.0 if parameters.peer_to_peer else 8.0

    findings = explain(network(factor=without_links).records(asked))
    assert "nccl no peer-to-peer takes 8.00 [8.00, 8.00] x the time" in said(findings, "no peer-to-peer takes")


def test_a_ping_pong_over_sizes_is_a_curve_of_one_way_times(network: Any) -> None:
    findings = explain(network().records(cases(op=("ping_pong",))))
    found = table(findings, "ping_pong float32, 4 ranks, gloo")
    assert float(column(found, "p50 us")[0]) == pytest.approx(20.0, abs=0.05)


def test_the_law_finds_the_machines_constants_and_states_its_error(network: Any) -> None:
    findings = explain(network(start_s=50e-6, gb_per_s=3.0).records(cases(op=("all_reduce", "broadcast"))))
    rows = table(findings, "Laws").rows
    assert [row[1:] for row in rows] == [("50", "2", "0 B", "1", "0.0%"), ("50", "3", "0 B", "1", "0.0%")]
    assert said(findings, "held out by") == "The laws of 2 curves miss sizes held out by 0% (median; worst curve 0%)."


def test_two_sizes_make_no_law_and_no_verdict(network: Any) -> None:
    findings = explain(network().records(cases(size=(Sizes(64, 128),))))
    assert not [s for s in findings.sentences if "law" in s.lower() or "enough" in s]
    assert findings.figures == ()


TRAINED = ("all_reduce", "all_gather", "reduce_scatter", "send_receive", "all_to_all")


def test_every_way_to_train_gets_a_verdict(network: Any) -> None:
    findings = explain(network().records(cases(op=TRAINED)), Training(compute_s=1.0))
    found = table(findings, "Verdicts")
    assert column(found, "parallelism") == [
        *("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "TP", "TP+SP", "PP", "EP of 8 experts")
    ]
    assert set(column(found, "verdict")) == {"enough", "network-bound"}
    assert not [sentence for sentence in findings.sentences if "Not judged" in sentence]


def test_a_faster_network_turns_the_verdict(network: Any) -> None:
    words = []
    for gb_per_s in (1.0, 1000.0):
        found = table(explain(network(gb_per_s=gb_per_s).records(cases()), Training(compute_s=1.0)), "Verdicts")
        words.append(dict(zip(column(found, "parallelism"), column(found, "verdict"), strict=True))["DDP"])
    assert words == ["network-bound", "enough"]


def test_what_was_not_measured_or_cannot_be_spread_is_not_judged(network: Any) -> None:
    odd = ModelDimensions(layers=2, hidden=64, ffn=100, heads=8, vocab=10)
    findings = explain(network().records(cases(ranks=(3,))), Training(1.0, odd, Workload(seq=8)))
    sentence = said(findings, "Not judged")
    assert "ZeRO-1 and ZeRO-2 and ZeRO-3 (all_gather and reduce_scatter not measured)" in sentence
    assert "TP and TP+SP (TP over 3 ranks cannot divide heads = 8 evenly)" in sentence
    assert column(table(findings, "Verdicts"), "parallelism") == ["DDP"]


def test_the_default_step_is_of_a_7b_model_and_says_so(network: Any) -> None:
    sentence = said(explain(network(identity=HOPPERS).records(cases())), "computing a step")
    assert "6.7e9 parameters (32 layers, hidden 4096), 1 x 4096 tokens a rank, 414 ms of computing a step" in sentence


def test_a_model_is_given_by_its_dimensions(network: Any) -> None:
    training = Training.parse(
        "layers=12, hidden=768, ffn=3072, heads=12, vocab=50257, tied=true, seq=1024, compute_ms=90"
    )
    assert training == Training(0.09, ModelDimensions(12, 768, 3072, 12, 50257, tied=True), Workload(seq=1024))
    findings = Collectives(training).findings(network().records(cases()))
    assert "12 layers, hidden 768), 1 x 1024 tokens a rank, 90 ms of computing a step" in said(findings, "computing")
    untold = Training.parse("layers=1,hidden=64,ffn=64,heads=1,vocab=64", flop_per_s=1e12)
    assert untold.compute_s == pytest.approx(6 * untold.model.parameters * 4096 / 1e12)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "write NAME=NUMBER"),
        ("layers=many", "write NAME=NUMBER, as in hidden=4096"),
        ("layers=2,depth=3", "knows no depth: give .*layers"),
        ("layers=2,hidden=64", "lacks ffn, heads, vocab"),
        ("layers=2,hidden=65,ffn=64,heads=2,vocab=9", "65 cannot be divided into 2 heads"),
        ("layers=inf,hidden=64,ffn=64,heads=2,vocab=9", "layers=inf .* whole numbers"),
        ("layers=1.5,hidden=64,ffn=64,heads=2,vocab=9", "layers=1.5 .* whole numbers"),
        ("layers=2,hidden=64,ffn=64,heads=2,vocab=9,compute_ms=nan", "compute_ms=nan .* takes some time"),
        ("layers=2,hidden=64,ffn=64,heads=2,vocab=9,compute_ms=-1", "compute_ms=-1 .* takes some time"),
        ("depth=3", "give layers, hidden, ffn, heads, vocab"),
    ],
)
def test_a_model_that_cannot_be_is_refused_in_one_sentence(text: str, told: str) -> None:
    with pytest.raises(UserError, match=told):
        Training.parse(text)


def test_below_its_threshold_of_computing_a_step_is_network_bound_and_above_it_is_not() -> None:
    sent = ddp(ModelDimensions(layers=2, hidden=64, ffn=256, heads=4, vocab=100), Workload(seq=8), 4)

    def seconds(operation: str, size_bytes: float, ranks: int) -> float:
        return 1e-5 + size_bytes / 1e9

    threshold_s = bound_below_s(sent, seconds)
    assert verdict(sent, 0.99 * threshold_s, seconds).network_bound
    assert not verdict(sent, 1.01 * threshold_s, seconds).network_bound


@pytest.mark.parametrize(("nodes", "warned"), [(1, False), (2, True), (4, False)])
def test_the_guides_thresholds_are_told_between_nodes(network: Any, nodes: int, warned: bool) -> None:
    machine = network(gb_per_s=25.0, nodes=nodes, identity=HOPPERS)
    findings = explain(machine.records(cases(implementation=("nccl",), ranks=(8,))))
    told = [sentence for sentence in findings.sentences if "between nodes carries" in sentence]
    assert len(told) == (nodes > 1)
    assert all("below the 400 Gbps" in sentence for sentence in told)
    # NVLink's peak says nothing about a network between nodes.
    assert any("NVLink" in sentence for sentence in findings.sentences) == (nodes == 1)
    assert any("nodes are measured: 4 or more are recommended" in s for s in findings.sentences) == warned


def test_where_the_switch_reduces_its_wire_rate_is_told(network: Any) -> None:
    asked = cases(op=("all_reduce", "all_gather"), implementation=("nccl",), ranks=(8,))
    machine = network(gb_per_s=480.0, identity=HOPPERS)
    reduced = table(explain(machine.records(asked)), "all_reduce float32, 8 ranks, nccl")
    algbw, wire = (float(column(reduced, name)[-1]) for name in ("algbw GB/s", "NVLS wire GB/s"))
    assert wire == pytest.approx(algbw * 9 / 8, rel=1e-2)
    assert "NVLS wire GB/s" not in table(explain(machine.records(asked)), "all_gather float32").columns
    ring = replace(machine, details={"algorithm": "RING"}).records(asked)
    assert "NVLS wire GB/s" not in table(explain(ring), "all_reduce float32, 8 ranks, nccl").columns
    assert column(table(explain(ring), "all_reduce float32, 8 ranks, nccl"), "algorithm") == ["RING"] * 6


def test_nccls_choices_are_read_in_visits_of_their_own_and_put_beside_the_times(network: Any) -> None:
    asked = cases(op=("all_reduce",), implementation=("nccl", "nccl_graph"), ranks=(8,))
    usual = replace(network(gb_per_s=300.0), identity=HOPPERS).records(asked)
    further = Collectives().follow_up(usual)
    assert {case.implementation for case in further} == {"nccl"}
    assert {case.parameters.bytes for case in further} == {case.parameters.bytes for case in asked}
    assert all(case.parameters.logged for case in further)
    told = {"algorithm": "TREE", "protocol": "LL128", "channels": 8}
    logged = replace(network(gb_per_s=1.0, details=told), identity=HOPPERS).records(further)
    assert Collectives().follow_up([*usual, *logged]) == further
    with_log, without = (explain(records).tables for records in ([*usual, *logged], usual))
    rates = [column(found, "algbw GB/s") for found in without if "algbw GB/s" in found.columns]
    told_of = [found for found in with_log if "algorithm" in found.columns]
    assert len(told_of) == len(rates) == 2
    assert [column(found, "algorithm") for found in told_of] == [["TREE"] * len(found.rows) for found in told_of]
    # The slow times of the logged visits count for nothing.
    assert [column(found, "algbw GB/s") for found in told_of] == rates


def test_on_cpus_there_is_no_log_to_read(network: Any) -> None:
    assert Collectives().follow_up(network().records(cases(implementation=("gloo",)))) == []


def test_the_start_time_is_that_of_a_graph_of_many_calls_where_there_is_one_and_the_finding_says_so(
    network: Any,
) -> None:
    single = network(start_s=50e-6).records(cases(implementation=("nccl",)))
    details = {"graph": True, "calls_per_graph": 16}
    graph = network(start_s=10e-6, details=details).records(cases(implementation=("nccl_graph",)))
    alone, both = explain(single), explain([*single, *graph])
    (start,), (starts,) = (column(table(found, "Laws"), "start us") for found in (alone, both))
    assert 3 * float(starts) < float(start)
    assert "measure nccl_graph" in said(alone, "thread")
    assert "16 calls" in said(both, "thread")
    assert not any("thread" in sentence for sentence in explain(graph).sentences)


def test_what_nvlinks_counted_stands_beside_the_formula(network: Any) -> None:
    (case,) = cases(size=(Sizes(2**30, 2**30),), implementation=("nccl",), ranks=(2,))
    machine = network(gb_per_s=100.0, identity=HOPPERS)
    usual = machine.record(case, 0, 0)
    gpus = [{"nvlink_bytes": {"sent": sent, "received": 5}} for sent in (20 * 2**30, 30 * 2**30)] + [None]
    counting = replace(usual, quality={**usual.quality, "rank_gpus": gpus})
    counting = replace(counting, sampling={**usual.sampling, "iterations": 30})
    found = table(explain([counting]), "all_reduce")
    assert column(found, "NVLink counters GB/s") == column(found, "algbw GB/s") == ["99.81"]
    assert "NVLink counters GB/s" not in table(explain([usual]), "all_reduce").columns


def test_the_picture_has_points_law_and_peak_over_a_growing_size(network: Any, tmp_path: Path) -> None:
    asked = cases(op=TRAINED, implementation=("nccl", "c10d_nccl"), ranks=(8,))
    (figure,) = explain(network(identity=HOPPERS).records(asked)).figures
    panels = [panel for row in figure.rows for panel in row]
    assert [panel.title for panel in panels] == [
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "send_receive",
    ]
    for panel in panels:
        assert [series.style for series in panel.series] == ["points", "points", "line", "beside"]
        assert panel.y_label == "busbw GB/s"
        assert panel.x_ticks[-1] == (2.0**26, "64 MiB")
    assert draw(figure, tmp_path).read_bytes().startswith(b"\x89PNG")


def test_one_rank_alone_is_shown_by_algbw_because_it_has_no_bus(network: Any) -> None:
    findings = explain(network().records(cases(ranks=(1,), op=("all_reduce",))))
    assert "GB/s algbw (one rank has no bus)" in said(findings, "algbw")
    (figure,) = findings.figures
    assert figure.rows[0][0].y_label == "algbw GB/s"


def test_a_resumed_visit_replaces_the_one_before(network: Any) -> None:
    machine, (case,) = network(), cases(size=(Sizes(64, 64),))
    again = replace(machine, start_s=40e-6)
    (curve,) = curves_of([machine.record(case, 0, 0), again.record(case, 0, 1)])
    assert len(curve.points[64].visits) == 1
    assert curve.points[64].seconds == pytest.approx(40e-6, rel=1e-3)


def test_the_run_is_kept_as_json_markdown_and_text(network: Any, tmp_path: Path) -> None:
    records: list[Record] = network().records(cases())
    told = json.loads(run_as_json(RunFolder(tmp_path, {}), records))
    [probe] = told["probes"]
    assert [column["name"] for column in probe["tables"][0]["columns"]][:2] == ["size B", "count"]
    assert probe["cases"][0]["tflop_per_s"] is None
    page = (tmp_path / "findings.md").read_text()
    assert "| size B | count | type |" in page
    assert "](collectives_4_ranks_float32.png)" in page
    assert "# Avg bus bandwidth" in (tmp_path / "nccl_tests.txt").read_text()
    assert probe["documents"] == ["nccl_tests.txt"]
