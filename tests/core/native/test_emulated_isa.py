"""Kernels of instruction sets that this processor may lack, built over plain C++ that computes what they do."""

import os
import shutil
from pathlib import Path

import pytest

from tests.core.native import cpu_cases

pytestmark = pytest.mark.slow

EMULATED = ("-Wno-psabi", "-DPYPERF_EMULATED", "-include", str(cpu_cases.HERE / "emulated_units.h"))
UNITS = {"amx": "fma,tdpbf16ps", "avx512_bf16": "fma,vdpbf16ps", "avx512": "fma,fma"}  # of float32 and bfloat16


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of cpu_cases.cpp over the emulation, under the sanitizers."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or os.uname().machine != "x86_64":
        pytest.skip("no C++ compiler for x86-64 builds the emulation: set CXX")
    return cpu_cases.program(tmp_path_factory.mktemp("sanitized"), compiler, (*cpu_cases.SANITIZED, *EMULATED))


@pytest.mark.parametrize("name", [*UNITS, "avx2", "portable"])
def test_drawn_shapes_are_right_and_read_nothing_outside_of_their_operands(sanitized, name):
    usable = dict(each.split(":") for each in cpu_cases.answers([sanitized], ["isas"])[0].split())
    if name not in usable:
        pytest.skip(f"this processor cannot run {name}, which is not emulated")
    assert usable[name] == UNITS.get(name, usable[name])
    lines = [*cpu_cases.heights(name, 32), *cpu_cases.drawn_products(name, rounds=3, max_size=100)]
    lines += cpu_cases.drawn_attentions(name, 12, max_size=100)
    cpu_cases.assert_right([sanitized], lines)
    for peak in cpu_cases.answers([sanitized], [f"peak {name} {dtype}" for dtype in ("float32", "bfloat16")]):
        assert float(peak.removeprefix("flop_per_s ")) > 0
