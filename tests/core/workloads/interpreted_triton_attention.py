"""A process in which Triton interprets: prepares attention cases as a worker does, with the host in the GPU's place.

Reads parameters as lines of JSON and answers what the launches were and whether their outputs passed verification.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.laws.tiled_attention import Blocks
from pyperf_suite.workloads.attention import AttentionParameters, attention
from pyperf_suite.workloads.attention.attention import ATTENTION
from pyperf_suite.workloads.operator import TorchTensors, judged
from pyperf_suite.workloads.workload import ExecutionContext


class HostTensors(TorchTensors):
    """The operands in the host's memory."""

    def __init__(self, operands: Any, place: ExecutionContext) -> None:
        super().__init__(operands, replace(place, device=Device("cpu")))


def answer(target: str, blocks: str, **named: Any) -> dict[str, Any]:
    """Two operand sets, each poisoned and launched."""
    attention.TorchTensors = HostTensors
    attention.gpu_of = lambda tensors: (target, 3)
    parameters = AttentionParameters(**named, blocks=Blocks.parse(blocks) if blocks else None)
    workload, implementation = ATTENTION, attention.TritonAttention()
    workload.validate(parameters)
    implementation.validate(parameters)
    operands = workload.operands(parameters, seed=1)
    launches = implementation.prepare(parameters, operands, ExecutionContext(Device("cuda"), sets=2))
    outcomes = []
    for index in (0, 1):
        launches.poison()
        before = judged(workload.launched(parameters).check, operands, launches.outputs(index)).passed
        launches.launch(index)
        outcomes.append(
            (before, judged(workload.launched(parameters).check, operands, launches.outputs(index)).message)
        )
    kernel = launches.kernel
    return {"outcomes": outcomes, "name": kernel.name, "path": kernel.path, "details": kernel.details}


if __name__ == "__main__":
    for line in sys.stdin:
        try:
            outcome = answer(**json.loads(line))
        except Unsupported as reason:
            outcome = {"unsupported": str(reason)}
        except Exception as error:
            outcome = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(outcome), flush=True)
