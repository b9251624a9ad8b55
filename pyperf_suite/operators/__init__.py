"""What is measured: one module a subject, with its implementations; operators have a reference, FLOPs and bytes."""

from __future__ import annotations

from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.operators.attention import Attention
from pyperf_suite.operators.collective import Collective
from pyperf_suite.operators.compiled_kernel import CompiledKernel
from pyperf_suite.operators.matmul import Matmul
from pyperf_suite.operators.operator import Subject
from pyperf_suite.operators.training.block_part import BlockPart
from pyperf_suite.operators.training.checkpointed_step import CheckpointedStep
from pyperf_suite.operators.training.data_parallel import DataParallel
from pyperf_suite.operators.training.input_pipeline import InputPipeline
from pyperf_suite.operators.training.layer_pass import LayerPass
from pyperf_suite.operators.training.optimizer_update import OptimizerUpdate
from pyperf_suite.operators.training.overlap import Overlap
from pyperf_suite.operators.training.parallel.parallel_step import ParallelStep
from pyperf_suite.operators.training.precision_step import PrecisionStep
from pyperf_suite.operators.training.saved_memory import TrainingMemory
from pyperf_suite.operators.training.topology import Topology
from pyperf_suite.operators.training.training_step import TrainingStep
from pyperf_suite.operators.training.transfer import Transfer

OPERATORS: dict[str, Subject[Any]] = {
    subject.name: subject
    for subject in (
        Matmul(),
        Attention(),
        Collective(),
        CompiledKernel(),
        TrainingStep(),
        Topology(),
        DataParallel(),
        Overlap(),
        ParallelStep(),
        TrainingMemory(),
        BlockPart(),
        LayerPass(),
        PrecisionStep(),
        CheckpointedStep(),
        InputPipeline(),
        Transfer(),
        OptimizerUpdate(),
    )
}


def find_operator(name: str) -> Subject[Any]:
    """The operator, or other subject of cases, of that name. Raises UserError that names those there are."""
    if name not in OPERATORS:
        raise UserError(f"Unknown operator {name!r}: choose from {', '.join(sorted(OPERATORS))}.")
    return OPERATORS[name]
