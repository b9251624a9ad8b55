import io
import sys
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from pyperf_suite.errors import OneOf, UserError, Within
from pyperf_suite.findings.data import Findings
from pyperf_suite.findings.probe import Probe
from pyperf_suite.hardware.devices import Device, Gpu
from pyperf_suite.kernels.static import INSTRUCTION_CLASSES
from pyperf_suite.probes import TOPICS, all_probes, find_probe, probe_names
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.render import text
from pyperf_suite.render.charts import page_figure
from pyperf_suite.render.terminal import print_findings
from pyperf_suite.runner.plan import Outlook, Plan, PlannedCase
from pyperf_suite.runner.profiles import PROFILES, find_profile
from tests.records import a_record

DEVICES = {
    "cpu": [],
    "cuda": [Gpu(0, "NVIDIA H200", "GPU-0", (9, 0), 132, 141 * 10**9)],
    "cuda of 2020": [Gpu(0, "NVIDIA A100-SXM4-80GB", "GPU-0", (8, 0), 108, 80 * 2**30)],
}
NAMES = probe_names()
TIMED = [name for name in NAMES if name != "topology"]  # whose records are what one machine said of itself
PROCESSES = 3


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RUN_ID", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """machine("cuda"): the device, after probes have been shown the GPUs of DEVICES."""

    def shown(kind: str) -> Device:
        for name, module in list(sys.modules.items()):
            if name.startswith("pyperf_suite.") and callable(getattr(module, "gpus", None)):
                monkeypatch.setattr(module, "gpus", lambda: DEVICES[kind])
        return Device(kind.split()[0])  # type: ignore[arg-type]

    for name in NAMES:
        find_probe(name)
    return shown


def kinds_of(name: str) -> list[str]:
    return list(DEVICES)


@pytest.mark.parametrize("name", NAMES)
def test_cases_of_every_profile_and_device_are_valid_and_differ(name, machine):
    probe = find_probe(name)
    assert probe.topic in TOPICS
    assert probe.question.endswith("?") or "?" in probe.question
    for kind in kinds_of(name):
        device = machine(kind)
        for profile in PROFILES:
            cases = probe.cases(profile, device)  # which validates each
            assert len({case.label for case in cases}) == len(cases) > 0
            assert all(probe.group(case).strip() for case in cases)
            some = cases[:: 1 + len(cases) // 200]
            assert all(Case.from_json(case.to_json()) == case for case in some)
        plan = Plan(tuple(PlannedCase(name, case) for case in some), find_profile("quick"), device)
        assert 0 < Outlook(plan).run_s() < 1e7


def limits_of(axes: Any) -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Name, type of an element, and limits of each axis."""
    for name, hint in typing.get_type_hints(type(axes), include_extras=True).items():
        inner = typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint
        yield name, typing.get_args(inner)[0], getattr(hint, "__metadata__", ())


@pytest.mark.parametrize("name", NAMES)
def test_an_axis_takes_its_own_values_as_they_are_written_and_refuses_others(name, machine):
    probe = find_probe(name)
    device = machine("cpu")
    axes = probe.axes("standard", device)
    for axis, element, limits in limits_of(axes):
        written = ",".join(map(str, getattr(axes, axis)))
        if written:
            assert {case.case_id for case in probe.cases("standard", device, {axis: written})} == {
                case.case_id for case in probe.cases("standard", device)
            }
        bad = [] if element is str and not limits else ["no-such-value"]
        bad += [str(limit.lower - 1) for limit in limits if isinstance(limit, Within)]
        bad += ["-1"] * any(isinstance(limit, OneOf) for limit in limits)
        for value in bad:
            with pytest.raises(UserError) as refusal:
                probe.cases("standard", device, {axis: value})
            assert len(str(refusal.value).splitlines()) == 1
    with pytest.raises(UserError, match="There is no axis 'colour'"):
        probe.cases("standard", device, {"colour": "red"})


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("alignment", {"base": "fprop:1x2"}, "not a shape"),
        ("alignment", {"base": "64x64x64"}, "PART:MxNxK"),
        ("alignment", {"dtype": "float32,flaot32"}, "dtype=flaot32 was requested: choose from float32"),
        ("attention_heads", {"heads": "7", "hidden": "512"}, "7 heads .* do not divide .* 512: take 4 or 8"),
        ("attention_heads", {"heads": "513", "hidden": "512"}, "do not divide the hidden size 512: take 512"),
        ("attention_heads", {"heads": "8", "hidden": "2147483647"}, "take 1 or 2147483647"),
        ("attention_heads", {"kv_ratio": "3", "heads": "8"}, "kv_ratio=3 .* does not divide 8 heads: take 2 or 4"),
        ("attention_heads", {"kv_ratio": "²"}, "write a number of query heads to a key head, or all"),
        ("attention_heads", {"blocks": "64"}, "write QUERIESxKEYS"),
        ("backward", {"seq": "250"}, "conv takes square images, but seq = 250 is no square: take 225 or 256"),
        ("baseline", {"shape": "1.5x2x3"}, "is not a shape"),
        ("calibration", {"attention": "1x2x3"}, "BATCHxHEADSxKV_HEADSxHEAD_DIMxSEQ"),
        ("checkpointing", {"checkpointing": "some"}, "none, every:K or selective"),
        ("checkpointing", {"hidden": "130"}, "cannot be divided"),
        ("collectives", {"op": "allreduce"}, "op=allreduce was requested: choose from all_reduce"),
        ("collectives", {"in_place": "maybe"}, "write true or false"),
        ("collectives", {"size": "64..8"}, "do not grow.*as in"),
        ("data_parallel", {"exchange": "dp"}, "drives GPUs, but only gloo"),
        ("grouped_matmul", {"shape": "12"}, "MxNxK"),
        ("input_pipeline", {"loaders": "1000"}, "and 256"),
        ("input_pipeline", {"batch": "1000"}, "do not fill a batch of 1000"),
        ("optimizer", {"tensors": "12"}, "TENSORSxROWSxCOLUMNS"),
        ("overlap", {"size": "0"}, "size=0"),
        ("overlap", {"run": "apart"}, "choose from product"),
        ("tile_wave", {"waves": "9999"}, "waves lies between"),
        ("transfer", {"disk_size": "5000"}, "blocks of 4096 bytes, but 5000 were requested"),
        ("transfer", {"way": "torch", "workers": "1"}, "transfer has no case with way=torch"),
    ],
)
def test_values_that_cannot_be_together_are_refused_with_what_can(name, changed, message, machine):
    with pytest.raises(UserError, match=message):
        find_probe(name).cases("quick" if name == "transfer" else "standard", machine("cpu"), changed)


def test_probes_that_a_run_of_all_leaves_out():
    assert {each.name for each in all_probes() if not each.is_timed} == {
        *("accept", "static_kernels", "memory", "topology", "study")
    }


def observed(case: Case, seconds: float) -> dict[str, Any]:
    """A worker's fields of a case in addition to its time, for `a_record`."""
    p = case.parameters
    if case.operator == "compiled_kernel":
        sizes = ("registers", "local_memory", "dynamic_shared_memory", "resident_blocks", "code")
        figures = (*sizes, *(f"instructions_{each}" for each in (*INSTRUCTION_CLASSES, "all")))
        return {"kind": "static", "metrics": dict.fromkeys(figures, 1.0)}
    if case.operator == "training_memory":
        parts = ("parameters", "weights", "gradients", "optimizer", "weight_copies", "activations", "peak", "capacity")
        return {"kind": "static", "metrics": dict.fromkeys(parts, 4096.0), "kernel": {"path": "cpu"}}
    if case.operator == "collective":
        own = [[seconds] * 4 for _ in range(p.ranks)]
        sampling = {"rank_samples_s": own, "rank_median_s": [seconds] * p.ranks, "rank_lag_s": [0.0] * p.ranks}
        return {"sampling": sampling | {"clock_uncertainty_s": 1e-6, "iterations": 4, "ranks": p.ranks}}
    metrics = {
        "checkpointed_step": dict.fromkeys(("kept", "fixed", "peak", "peak_of_one", "budget"), 4096.0),
        "precision_step": dict.fromkeys(
            ("activations", "weight_copies", "weights", "gradients", "casts", "cast"), 4096.0
        ),
        "input_pipeline": dict.fromkeys(("wait", "model", "starved", "first_batch", "next_epoch"), 1e-3),
        "layer_pass": {"saved": 4096.0},
        "optimizer_update": {"state": 4096.0, "passing": 0.0},
    }
    details = {"grouped_matmul": {"calls": 2}, "input_pipeline": {"cores": 2}}
    return {
        "metrics": metrics.get(case.operator, {}),
        "details": details.get(case.operator, {"parameters": 4096, "gpu": "NVIDIA H200", "slots": 2}),
    }


def run_of(probe: Probe, cases: list[Case], outcome: str = "ok") -> list[Record]:
    """Records of three processes; times differ by case and a little by process."""
    records = []
    for process in range(PROCESSES):
        for case in cases:
            seconds = 1e-3 * (1 + int(case.case_id[:4], 16) / 2**16) * (1 + 1e-3 * process)
            seen = observed(case, seconds)
            time = None if seen.get("kind") == "static" else seconds
            how = {"outcome": outcome, "probe": probe.name, "process": process, "profile": "full"}
            records.append(a_record(case, time, **how, **seen))
    return records


def reported(probe: Probe, records: list[Record]) -> Findings:
    """The findings, after every form of report was made of them."""
    findings = probe.findings(records)
    printed = io.StringIO()
    print_findings(Console(file=printed, width=100), {probe.name: findings}, records)
    assert text.markdown_page("a run", {probe.name: findings}, records, [], {probe.name: "a command"}, [])
    assert text.as_text(text.findings_as_data(findings))
    for figure in findings.figures:
        assert page_figure(figure)
    return findings


@pytest.mark.parametrize("name", TIMED)
def test_findings_of_sound_records_fill_tables_and_can_be_reported(name, machine):
    probe = find_probe(name)
    for kind in kinds_of(name):
        cases = probe.cases("standard" if kind == "cpu" else "quick", machine(kind))
        records = run_of(probe, cases)
        found = reported(probe, records)
        assert found.remarks or found.tables
        assert all(len(row) == len(table.columns) for table in found.tables for row in table.rows)
        assert all(each.outcome in ("holds", "does not hold here", "undecided") for each in found.verdicts)
        if probe.follow_up is not None:
            requested = probe.follow_up(records)
            assert not {case.case_id for case in requested} & {case.case_id for case in cases}


@pytest.mark.parametrize("outcome", ["failed", "unsupported"])
@pytest.mark.parametrize("name", TIMED)
def test_what_gave_no_time_leaves_the_rest_as_it_is(name, outcome, machine):
    probe = find_probe(name)
    cases = probe.cases("standard", machine("cpu"))
    lost = run_of(probe, cases, outcome)
    nothing = reported(probe, lost)
    assert nothing.verdicts == []
    assert not nothing.figures or probe.name == "study"  # which shows the reasons
    half = run_of(probe, cases[::2]) + run_of(probe, cases[1::2], outcome)
    assert isinstance(reported(probe, half), Findings)
    for few in (1, 2, 5):
        assert isinstance(reported(probe, run_of(probe, cases[:few])), Findings)


@pytest.mark.parametrize("name", NAMES)
def test_no_records_give_no_findings(name):
    assert find_probe(name).findings([]) == Findings()


@pytest.mark.parametrize("name", [name for name in TIMED if name not in ("collectives", "calibration")])
def test_findings_do_not_depend_on_the_order_of_processes(name, machine):
    probe = find_probe(name)
    records = run_of(probe, probe.cases("quick", machine("cpu")))
    again = [*records[len(records) // PROCESSES :], *records[: len(records) // PROCESSES]]
    assert text.findings_as_data(probe.findings(again)) == text.findings_as_data(probe.findings(records))


@pytest.mark.parametrize("name", NAMES)
def test_one_process_decides_no_claim_on_times(name, machine):
    if name == "topology":
        return
    probe = find_probe(name)
    alone = [each for each in run_of(probe, probe.cases("standard", machine("cpu"))) if each.process == 0]
    timed = [each for each in probe.findings(alone).verdicts if each.measured.processes]
    assert all(each.outcome == "undecided" for each in timed)
