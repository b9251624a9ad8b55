"""The static probe names every kernel that uses local memory, and shows what each costs."""

from __future__ import annotations

from pyperf_suite.kernels.static import INSTRUCTION_CLASSES
from pyperf_suite.probes.static_kernels import PROBE
from pyperf_suite.record.case import Case
from pyperf_suite.record.record import Record
from pyperf_suite.workloads.exact import CompiledKernelParameters
from tests.records import a_record, lines

SHOWN = ("registers", "local_memory", "dynamic_shared_memory", "resident_blocks", "code")


def kernel(name: str, registers: int, local_loads: int = 0) -> Record:
    figures = dict.fromkeys(SHOWN, 1.0) | {f"instructions_{each}": 0.0 for each in (*INSTRUCTION_CLASSES, "all")}
    figures |= {"registers": float(registers), "instructions_LDL": float(local_loads), "instructions_HMMA": 64.0}
    case = Case("compiled_kernel", CompiledKernelParameters(name, "sm_80"), "nvrtc")
    return a_record(case, None, kind="static", metrics=figures, kernel={"name": name, "path": "sm_80"})


def test_a_kernel_that_spills_is_named() -> None:
    found = PROBE.findings([kernel("lean", 100), kernel("greedy", 255, local_loads=12)])
    greedy = {"kernel": "greedy", "target": "sm_80"}
    assert [remark.values for remark in found.remarks] == [{"spilling": 1, "all": 2}, greedy, {"most": 255, **greedy}]
    rows = lines(found, "Our GPU kernels")
    assert [row["kernel"] for row in rows] == ["greedy", "lean"]
    assert (rows[0]["tensor core"], rows[0]["copies"], rows[0]["registers"]) == ("64 HMMA", None, 255)
    assert (rows[0]["shared memory"].value, rows[0]["shared memory"].base) == (1.0, "B")
