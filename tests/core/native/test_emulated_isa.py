"""Kernels of instruction sets that this processor may lack, built over plain C++ that computes what they do.

The extension is built once more with `emulated_units.h` in place of the intrinsics; tests of the real one run on it.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from tests.core.native import cpu_cases
from tests.core.native.cpu_cases import CSRC, HERE

pytestmark = pytest.mark.slow

ISAS = ("amx", "avx512_bf16", "avx512")
EMULATED = ["-Wno-psabi", "-DPYPERF_EMULATED", "-include", str(HERE / "emulated_units.h")]


def loaded(name: str, path: Path) -> ModuleType:
    """A module from its file: other tests, of which some run here too, or an extension."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


gemm = loaded("emulated_gemm", HERE / "test_gemm.py")
attention = loaded("emulated_attention", HERE / "test_attention.py")
test_a_product = gemm.test_a_product_with_edges_on_every_side_is_right
test_sizes_of_products = gemm.test_sizes_around_the_tile_one_and_primes_are_right
test_heights_of_products = gemm.test_every_height_of_the_micro_kernel_is_right
test_any_product = gemm.test_any_shape_tile_layout_and_schedule_is_right
test_an_attention = attention.test_attention_with_edges_on_every_side_is_right
test_heights_of_attention = attention.test_every_height_of_the_micro_kernel_is_right


def compiler_here() -> str:
    """The C++ compiler; a skip where none builds for x86-64, whose instructions are emulated."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None or os.uname().machine != "x86_64":
        pytest.skip("no C++ compiler for x86-64 builds the emulation: set CXX")
    return compiler


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """The CPU's part of the extension with every instruction set emulated."""
    pybind11 = pytest.importorskip("pybind11", reason="pybind11 is not installed: run `pip install pybind11`")
    compiler = compiler_here()
    folder = tmp_path_factory.mktemp("emulated")
    options = ["-O1", "-fPIC", "-fvisibility=hidden", *EMULATED]
    options += [f"-I{pybind11.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    sources = [*CSRC.glob("cpu/*.cpp"), CSRC / "module.cpp", CSRC / "attention_bindings.cpp"]
    objects = cpu_cases.objects(folder, compiler, options, [*sources, HERE / "emulated_module.cpp"])
    library = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    subprocess.run([compiler, "-shared", *objects, "-o", library, "-pthread"], check=True)
    return loaded("emulated._native", library)


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program of cpu_cases.cpp over the emulation, under the sanitizers."""
    options = [*cpu_cases.SANITIZED, *EMULATED]
    return cpu_cases.program(tmp_path_factory.mktemp("sanitized"), compiler_here(), options)


@pytest.mark.parametrize("name", [*ISAS, "avx2", "portable"])
def test_drawn_shapes_are_right_and_read_nothing_outside_of_their_operands(sanitized, name):
    usable = cpu_cases.answers([sanitized], ["isas"])[0].split()
    if not any(each.startswith(f"{name}:") for each in usable):
        pytest.skip(f"this processor cannot run {name}, which is not emulated")
    lines = [*cpu_cases.heights(name, 32), *cpu_cases.drawn_products(name, rounds=3, most=100)]
    lines += cpu_cases.drawn_attentions(name, 12, most=100)
    cpu_cases.assert_right([sanitized], lines)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_loop_on_registers_runs(native, isa, dtype):
    ((flop_per_s, _, _),) = native.core_peaks(dtype, 1, 0.001, isa)
    assert flop_per_s > 0


def test_every_instruction_set_names_its_units(native):
    units = {isa: [native.unit(isa, dtype) for dtype in ("float32", "bfloat16")] for isa in ISAS}
    assert units == {
        "amx": ["fma", "tdpbf16ps"],
        "avx512_bf16": ["fma", "vdpbf16ps"],
        "avx512": ["fma", "fma"],
    }
