"""Families of slow tests, and how many of each run on every change.

`make test` runs what is not slow, of a test with many sets of parameters a few. `make test-families` runs
representatives: of each family below the number that stands with it, of any other file with slow tests one. All of
them are drawn by the commit's hash, so that changes after each other try different ones; `SEED=` repeats a draw.
`make nightly` runs everything. A test marked `nightly` is never a representative: it depends on the machine's load, on
a share of time or on who wins a race.
"""

from __future__ import annotations

from dataclasses import dataclass

EVERY_SET = 1_000


@dataclass(frozen=True)
class Family:
    """Tests whose node ids begin with one of `places`, below tests/; `on_change` of them are drawn."""

    name: str
    on_change: int
    places: tuple[str, ...]


FAMILIES = (
    Family("cheats", 20, ("core/user_kernels/test_cheats.py",)),
    Family("honest kernels", 20, ("core/user_kernels/test_honest_kernels.py",)),
    Family("users' kernels", 10, ("core/user_kernels/test_user_kernel.py",)),
    Family("hostile files", 10, ("hardening/test_hostile_files.py",)),
    Family("kills", 10, ("hardening/test_runs.py::test_killed",)),
    Family("rank drills", 10, ("core/ranks/test_dead_rank.py", "core/ranks/test_starting.py")),
    Family("Triton kernels, interpreted", 2, ("core/kernels/test_triton_",)),
    Family("machine code", 4, ("core/kernels/test_static.py", "core/kernels/test_gemm_sm90.py")),
    Family("emulated Hopper product", 1, ("core/kernels/test_gemm_sm90_emulated.py",)),
    Family("emulated Ampere product", 1, ("core/kernels/test_gemm_sm80_emulated.py",)),
    Family("emulated instruction sets", 1, ("core/native/test_emulated_isa.py", "core/native/test_arm.py")),
    Family("CuTe's answers", EVERY_SET, ("core/kernels/test_against_cute.py",)),
    Family("double of the driver", 8, ("core/native/test_cuda_", "core/gpu_double/")),
    Family("double of NCCL", 4, ("core/native/test_nccl_", "core/native/test_collective_over_nccl.py")),
    Family("watched jobs", 3, ("node/watch/",)),
    Family("a page in a browser", 1, ("core/render/page/test_page_in_chromium.py",)),
    Family("study steps", 2, ("planner/study/", "planner/workloads/")),
    Family("published measurements", 3, ("planner/fit/", "planner/laws/")),
    Family("laws of memory", 4, ("core/laws/", "core/workloads/training/")),
    Family("verification", 4, ("core/measure/test_verify", "core/workloads/test_outputs.py")),
    Family("commands", 6, ("core/cli/",)),
    Family("paired comparisons", 4, ("core/regressions/",)),
)


def family_of(node_id: str) -> tuple[str, int]:
    """The name of a slow test's family, and how many of that run on every change."""
    path = node_id.removeprefix("tests/")
    for family in FAMILIES:
        if path.startswith(family.places):
            return family.name, family.on_change
    return path.partition("::")[0], 1
