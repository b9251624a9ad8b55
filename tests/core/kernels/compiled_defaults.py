"""A process with a Triton of its own: compiles default kernels of sm_90 and prints what ptxas and they say.

Arguments are parts of the names of those that are left out.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton

from pyperf_suite.kernels.disassembly import disassembler
from pyperf_suite.kernels.static import triton_kernels

TARGET = "sm_90"
PTXAS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"


def facts(binary: Any) -> dict[str, int]:
    """Warnings that wgmma is serialised, wgmmas and the waits for all of them, and accesses to local memory."""
    with tempfile.TemporaryDirectory() as folder:
        ptx, cubin = Path(folder) / "kernel.ptx", Path(folder) / "kernel.cubin"
        ptx.write_text(binary.ptx)
        cubin.write_bytes(binary.cubin)
        again = ["-v", "--gpu-name=sm_90a", ptx, "-o", cubin.with_name("again")]
        said = subprocess.run([PTXAS, *again], capture_output=True, text=True, check=True)
        code = subprocess.run([disassembler(), "--dump-sass", cubin], capture_output=True, text=True, check=True).stdout
    return {
        "warnings": (said.stdout + said.stderr).count("C7515"),
        "wgmmas": len(re.findall(r"\b[HQI]GMMA\.", code)),
        "waits_for_all": len(re.findall(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x0\b", code)),
        "local_memory_instructions": len(re.findall(r"\b(?:LDL|STL)\b", code)),
    }


if __name__ == "__main__":
    kernels = {
        name: facts(kernel.compile_for(TARGET))
        for name, kernel in triton_kernels(TARGET).items()
        if not any(part in name for part in sys.argv[1:])
    }
    print(json.dumps({"triton": triton.__version__, "kernels": kernels}))
