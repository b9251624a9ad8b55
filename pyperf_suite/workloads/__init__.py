"""What is measured: one module a subject, with its implementations; operators have a reference, FLOPs and bytes."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.workloads.workload import Workload

# The module and class of each whose module has another name than itself; all others are found by theirs, as WORKLOAD.
OPERATORS = {
    "matmul": "matmul.product:Matmul",
    "attention": "attention.attention:Attention",
    "collective": "collective.collective:Collective",
    "grouped_matmul": "grouped_matmul:GroupedMatmul",
    "compiled_kernel": "compiled_kernel:CompiledKernel",
    "training_step": "training.training_step:TrainingStep",
    "topology": "training.topology:Topology",
    "data_parallel": "training.data_parallel:DataParallel",
    "overlap": "training.overlap:Overlap",
    "parallel_step": "training.parallel.parallel_step:ParallelStep",
    "training_memory": "training.saved_memory:TrainingMemory",
    "block_part": "training.block_part:BlockPart",
    "layer_pass": "training.layer_pass:LayerPass",
    "precision_step": "training.precision_step:PrecisionStep",
    "checkpointed_step": "training.checkpointed_step:CheckpointedStep",
    "input_pipeline": "training.input_pipeline:InputPipeline",
    "transfer": "training.transfer:Transfer",
    "optimizer_update": "training.optimizer_update:OptimizerUpdate",
}


@functools.cache
def find_workload(name: str) -> Workload[Any]:
    """The operator, or other subject of cases, of that name. Raises UserError that names those there are."""
    if ":" in name:  # FILE.py:function, package.module:function or FILE.py::test, which are a user's
        from pyperf_suite.workloads.user_kernel import UserKernel

        return UserKernel(name)
    if name not in OPERATORS:
        raise UserError(f"Unknown operator {name!r}: choose from {', '.join(sorted(OPERATORS))}.")
    module, _, kind = OPERATORS[name].partition(":")
    made: Workload[Any] = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return made
