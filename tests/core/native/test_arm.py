"""The kernels of Arm processors, cross-compiled and run by an emulator: results, not speed."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.core.native.cpu_cases import (
    LAYOUTS,
    SANITIZED,
    answers,
    assert_right,
    drawn_attentions,
    drawn_products,
    heights,
    program,
)

pytestmark = pytest.mark.slow

COMPILER, EMULATOR, DISASSEMBLER = "aarch64-linux-gnu-g++", "qemu-aarch64", "aarch64-linux-gnu-objdump"
ROWS = 12  # of their micro-kernels
CORES = min(2, len(os.sched_getaffinity(0)))
Command = tuple[str, ...]


def emulated(folder: Path, *options: str) -> Command:
    """Command to run the program on a processor with all features of the emulator; a skip where a tool is missing."""
    if shutil.which(COMPILER) is None or shutil.which(EMULATOR) is None:
        pytest.skip(f"needs {COMPILER} and {EMULATOR}: apt-get install g++-aarch64-linux-gnu qemu-user")
    path = program(folder, COMPILER, (*options, "-Wall", "-Wextra", "-Werror"))
    return (EMULATOR, "-L", "/usr/aarch64-linux-gnu", "-cpu", "max", str(path))


def loops(file: Path) -> Iterator[str]:
    """The instructions of every loop of a micro-kernel: from where a branch leads back to, up to that branch."""
    command = [DISASSEMBLER, "-d", "--no-show-raw-insn", file]
    code = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    function, instructions = "", {}
    for line in code.splitlines():
        address, _, instruction = line.strip().partition(":\t")
        if not instruction:
            function, instructions = line, {}
            continue
        instructions[int(address, 16)] = instruction
        branch = re.match(r"b\.\w+\t([0-9a-f]+) <", instruction)
        if branch and int(branch[1], 16) in instructions and "micro" in function:
            yield "\n".join(each for at, each in instructions.items() if at >= int(branch[1], 16))


@pytest.fixture(scope="session")
def arm(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return emulated(tmp_path_factory.mktemp("arm"), "-O3")


def cases(rounds: int, max_size: int, cores: int = 1) -> list[str]:
    lines = [*heights("neon", ROWS), *drawn_products("neon", rounds, max_size, cores)]
    return [*lines, *drawn_attentions("neon", 2 * rounds, max_size, cores)]


def test_the_one_set_of_kernels_is_neon_and_others_are_refused_by_name(arm):
    assert answers(arm, ["isas"])[0].split() == ["neon:fma,fma"]
    outcome, _, sentence = answers(arm, list(drawn_products("avx2", rounds=1, max_size=8))[:1])[0].partition(" ")
    assert outcome == "refused"
    assert "'avx2'" in sentence
    assert sentence.endswith("can run neon.")


def test_every_layout_schedule_and_height_of_the_micro_kernels_is_right(arm):
    assert_right(arm, cases(rounds=3, max_size=90, cores=CORES))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_deepest_tile_and_widest_blocks_are_right(arm, dtype):
    lines = [f"product neon {dtype} float32 {layout} 13 9 515 13 2 512 0 1 1 1 0 0 0 1" for layout in LAYOUTS]
    assert_right(arm, [*lines, f"attention neon {dtype} 0 1 1 1 14 515 512 14 64 1 1"])
    assert answers(arm, [lines[0].replace(" 512 ", " 513 ")])[0].startswith("refused")


def test_the_sums_of_the_largest_tiles_stay_in_registers(arm):
    """A sum that is kept on the stack is loaded and stored at every step, which takes longer than the product."""
    file = Path(arm[-1]).with_name("kernels_portable.o")
    tall = [loop for loop in loops(file) if len(re.findall("fmla", loop)) == 24]
    assert tall
    assert not [loop for loop in tall if "[sp" in loop]


@pytest.fixture(scope="session")
def sanitized(tmp_path_factory: pytest.TempPathFactory) -> Command:
    return emulated(tmp_path_factory.mktemp("sanitized"), *SANITIZED, "-static-libasan", "-static-libubsan")


def test_drawn_shapes_are_right_and_read_nothing_outside_of_their_operands(sanitized):
    assert_right(sanitized, cases(rounds=1, max_size=40))
