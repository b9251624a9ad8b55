"""Read a compiled kernel, its registers, memory and instructions, as NVIDIA's `cuobjdump` prints them."""

from __future__ import annotations

import functools
import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

INSTRUCTION_BYTES = 16  # from compute capability 7.0 on

_FUNCTION = re.compile(r"^\s*Function ?:? (?P<name>[^:\s]+):?\s*$")
_RESOURCES = re.compile(r"\bREG:(?P<registers>\d+) STACK:(?P<stack>\d+) SHARED:(?P<shared>\d+) LOCAL:(?P<local>\d+)")
# "/*0050*/ @!P0 HMMA.16816.F32.BF16 R4, …": where it stands, an optional predicate, and the instruction.
_INSTRUCTION = re.compile(r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P\w+\s+)?(?P<opcode>[A-Z][A-Z0-9_]*)")


class NoDisassembler(Exception):
    """There is no cuobjdump here, or none for a compiler's binaries; the message says what to do."""


class Unreadable(ValueError):
    """cuobjdump cannot read a binary; the message is what it says."""


@dataclass(frozen=True)
class Disassembly:
    """Machine code of one kernel; `instructions` counts them by opcode, without its suffixes."""

    kernel: str
    registers: int
    stack_bytes: int
    local_bytes: int
    static_shared_bytes: int
    code_bytes: int
    instructions: Mapping[str, int]


def disassemble(cubin: bytes, kernel: str) -> Disassembly:
    """The kernel of that name in a binary.

    Raises:
        NoDisassembler: cuobjdump is not here.
        ValueError: the binary cannot be read (Unreadable), or has no such kernel.
    """
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run(
            [disassembler(), "--dump-resource-usage", "--dump-sass", file.name], capture_output=True, text=True
        )
    if done.returncode != 0:
        said = (done.stderr.strip() or done.stdout.strip()).replace(file.name, "it")
        raise Unreadable(f"cuobjdump cannot read this binary: {said}")
    return parse(done.stdout, kernel)


def parse(listing: str, kernel: str) -> Disassembly:
    """Parse cuobjdump's listing of one kernel. Raises ValueError where the listing lacks the kernel."""
    resources: dict[str, int] = {}
    instructions: Counter[str] = Counter()
    code_bytes = 0
    function = ""
    for line in listing.splitlines():
        if match := _FUNCTION.match(line):
            function = match["name"]
        elif function == kernel and (match := _RESOURCES.search(line)):
            resources = {name: int(number) for name, number in match.groupdict().items()}
        elif function == kernel and (match := _INSTRUCTION.match(line)):
            instructions[match["opcode"]] += 1
            code_bytes = int(match["address"], 16) + INSTRUCTION_BYTES
    if not resources or not instructions:
        raise ValueError(f"The binary has no kernel {kernel!r}.")
    return Disassembly(
        kernel,
        registers=resources["registers"],
        stack_bytes=resources["stack"],
        local_bytes=resources["local"],
        static_shared_bytes=resources["shared"],
        code_bytes=code_bytes,
        instructions=dict(sorted(instructions.items())),
    )


def release() -> str:
    """The CUDA version that cuobjdump is of, as in 13.1; empty where it does not say."""
    done = subprocess.run([disassembler(), "--version"], capture_output=True, text=True)
    found = re.search(r"release ([\d.]+)", done.stdout)
    return found[1] if found else ""


@functools.cache
def disassembler() -> str:
    """The path of cuobjdump. Raises NoDisassembler where there is none."""
    triton = importlib.util.find_spec("triton")
    folders = list(triton.submodule_search_locations or []) if triton is not None else []
    for folder in folders:
        path = Path(folder) / "backends" / "nvidia" / "bin" / "cuobjdump"
        if path.is_file():
            return str(path)
    found = shutil.which("cuobjdump")
    if found is None:
        raise NoDisassembler("Machine code is read by cuobjdump, which is not here: pip install triton brings it.")
    return found
