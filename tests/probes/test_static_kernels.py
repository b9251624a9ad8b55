"""The static probe names every kernel that uses local memory, and shows what each costs."""

from __future__ import annotations

from pyperf_suite.hardware.devices import resolve
from pyperf_suite.kernels.static import INSTRUCTION_CLASSES
from pyperf_suite.probes.static_kernels import SHOWN, StaticKernels
from pyperf_suite.runner.record import Metric, Record
from pyperf_suite.spec.discovery import all_probes, find_probe


def a_record(name: str, registers: int, local_loads: int = 0) -> Record:
    figures = dict.fromkeys(SHOWN, 1.0) | {f"instructions_{each}": 0.0 for each in (*INSTRUCTION_CLASSES, "all")}
    figures |= {"registers": float(registers), "instructions_LDL": float(local_loads), "instructions_HMMA": 64.0}
    metrics = {each: Metric("", value, value, value, value, value, [value]) for each, value in figures.items()}
    case = {"operator": "compiled_kernel", "parameters": {"kernel": name, "target": "sm_80"}, "implementation": "nvrtc"}
    return Record("run", "static", case, name, 0, 0, "", "ok", metrics=metrics, kernel={"name": name, "path": "sm_80"})


def test_a_kernel_that_spills_is_named() -> None:
    found = StaticKernels().findings([a_record("lean", 100), a_record("greedy", 255, local_loads=12)])
    assert found.sentences == (
        "1 of 2 kernels use local memory: greedy for sm_80.",
        "Most registers: 255 a thread in greedy for sm_80.",
    )
    assert [row[0] for row in found.tables[0].rows] == ["greedy", "lean"]
    assert "64 HMMA" in found.tables[0].rows[0]


def test_records_of_nothing_say_nothing() -> None:
    assert StaticKernels().findings([]).sentences == ()


def test_every_default_kernel_of_every_target_is_a_case_and_none_is_timed() -> None:
    probe = find_probe("static_kernels")
    cases = probe.cases("quick", resolve("cpu"))
    assert {(case.implementation, case.parameters.target) for case in cases} == {
        ("nvrtc", "sm_80"),
        ("nvrtc", "sm_90a"),
        *(("triton", target) for target in ("sm_80", "sm_90", "sm_100")),
    }
    assert {each.name for each in all_probes() if not each.is_timed} == {
        *("static_kernels", "memory", "topology", "step_calibration", "study")
    }
