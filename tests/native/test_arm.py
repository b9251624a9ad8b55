"""The kernels of Arm processors, cross-compiled and run by an emulator: results, not speed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.native.cpu_cases import (
    LAYOUTS,
    SANITIZED,
    answers,
    assert_right,
    drawn_attentions,
    drawn_products,
    ends_of_int8,
    heights,
    program,
)

pytestmark = pytest.mark.slow

COMPILER, EMULATOR, DISASSEMBLER = "aarch64-linux-gnu-g++", "qemu-aarch64", "aarch64-linux-gnu-objdump"
ISAS = {"neon_bf16": ("bfloat16", "int8"), "neon_dot": ("int8",), "neon": ("float32", "bfloat16", "int8")}
ROWS = 12  # of all their micro-kernels
CORES = min(2, len(os.sched_getaffinity(0)))
Command = tuple[str, ...]


def emulated(folder: Path, *options: str) -> Command:
    """What runs the program on a processor that has everything the emulator knows; a skip where a tool is missing."""
    if shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None:
        pytest.skip(f"needs {COMPILER} and {EMULATOR}: apt-get install g++-aarch64-linux-gnu qemu-user")
    path = program(folder, COMPILER, (*options, "-Wall", "-Wextra", "-Werror"))
    return (EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", "max", str(path))


def loops(file: Path) -> Iterator[str]:
    """The instructions of every loop of a micro-kernel: from where a branch leads back to, up to that branch."""
    command = [DISASSEMBLER, "-d", "--no-show-raw-insn", file]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    function, seen = "", {}
    for line in code.splitlines():
        address, _, instruction = line.strip().partition(":\t")
        if not instruction:
            function, seen = line, {}
            continue
        seen[int(address, 16)] = instruction
        branch = re.match(r"b\.\w+\t([0-9a-f]+) <", instruction)
        if branch and int(branch[1], 16) in seen and "micro" in function:
            yield "\n".join(each for at, each in seen.items() if at >= int(branch[1], 16))


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Command:
    """The program as the extension is compiled."""
    return emulated(tmp_path_factory.mktemp("arm"), "-O3")


def on(processor: str, arm: Command) -> Command:
    """The same on another processor."""
    return (*arm[:-2], processor, arm[-1])


@pytest.mark.parametrize(
    ("processor", "usable"),
    [
        ("max", ["neon_bf16:fma,bfmmla,smmla", "neon_dot:fma,fma,sdot", "neon:fma,fma,madd16"]),
        ("neoverse-n1", ["neon_dot:fma,fma,sdot", "neon:fma,fma,madd16"]),
        ("cortex-a72", ["neon:fma,fma,madd16"]),
    ],
)
def test_the_processor_decides_which_kernels_are_used(arm: Command, processor: str, usable: list[str]) -> None:
    there = on(processor, arm)
    assert answers(there, ["isas"])[0].split() == usable
    best = usable[0].split(":")[0]
    assert_right(there, [*drawn_products(best, rounds=1, most=50), *drawn_attentions(best, rounds=1, most=40)])


def cases(isa: str, rounds: int, most: int, cores: int = 1) -> list[str]:
    """Products and attentions of the dtypes in which these kernels are not those of the set before."""
    lines = [*heights(isa, ROWS), *ends_of_int8(isa), *drawn_products(isa, rounds, most, cores)]
    lines += drawn_attentions(isa, 2 * rounds, most, cores)
    return [line for line in lines if line.split()[2] in ISAS[isa]]


def test_every_layout_schedule_and_height_of_the_micro_kernels_is_right(arm: Command, isa: str) -> None:
    assert_right(arm, cases(isa, rounds=3, most=90, cores=CORES))


def test_the_deepest_tile_and_widest_blocks_are_right(arm: Command, isa: str) -> None:
    depths = {"neon_bf16": (512, 1024, 2048), "neon_dot": (512, 512, 2048), "neon": (512, 512, 1024)}[isa]
    types = ("float32 float32", "bfloat16 float32", "int8 int32")
    for each, depth in zip(types, depths, strict=True):
        lines = [f"product {isa} {each} {layout} 13 9 {depth + 3} 13 2 {depth} 0 1 1 1 0 0 0 1" for layout in LAYOUTS]
        assert_right(arm, lines)
        assert answers(arm, [lines[0].replace(f" {depth} ", f" {depth + 1} ")])[0].startswith("refused")
    assert_right(arm, [f"attention {isa} {each} 0 1 1 1 14 515 512 14 64 1 1" for each in ("float32", "bfloat16")])


@pytest.mark.parametrize(
    ("file", "multiplies"), [("kernels_portable", "fmla"), ("kernels_neon_bf16", "mmla"), ("kernels_neon_dot", "sdot")]
)
def test_the_sums_of_the_largest_tiles_stay_in_registers(arm: Command, file: str, multiplies: str) -> None:
    """A sum that is kept on the stack is loaded and stored at every step, which takes longer than the product."""
    tall = [loop for loop in loops(Path(arm[-1]).with_name(f"{file}.o")) if len(re.findall(multiplies, loop)) == 24]
    assert tall
    assert not [loop for loop in tall if "[sp" in loop]


def test_a_processor_without_the_instructions_refuses_them_by_name(arm: Command) -> None:
    older = on("cortex-a72", arm)
    for isa in ("neon_bf16", "neon_dot"):
        outcome, _, sentence = answers(older, list(drawn_products(isa, rounds=1, most=8))[:1])[0].partition(" ")
        assert outcome == "refused"
        assert f"'{isa}'" in sentence
        assert sentence.endswith("can run neon.")


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return emulated(tmp_path_factory.mktemp("sanitized"), *SANITIZED, "-static-libasan", "-static-libubsan")


def test_drawn_shapes_are_right_and_read_nothing_outside_of_their_operands(sanitized: Command, isa: str) -> None:
    assert_right(sanitized, cases(isa, rounds=1, most=40))
