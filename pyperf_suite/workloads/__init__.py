"""Workloads: one module a subject, with its implementations; operators have a reference, FLOPs and bytes."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
from typing import Any

from pyperf_suite.errors import UserError
from pyperf_suite.extensions import extensions, load
from pyperf_suite.workloads.workload import Workload

# The module of each, and the workload or its class there, imported when it is requested. A module of the workload's own
# name needs no line here: it has the workload as WORKLOAD. Other parts and packages bring theirs with their probes.
WORKLOADS = {
    "matmul": "matmul.matmul:MATMUL",
    "grouped_matmul": "matmul:GROUPED_MATMUL",
    "attention": "attention.attention:ATTENTION",
    "collective": "collective.collective:Collective",
    "compiled_kernel": "exact:CompiledKernel",
    "topology": "exact:Topology",
    "training_step": "training.training_step:TrainingStep",
    "precision_step": "training.training_step:PrecisionStep",
    "checkpointed_step": "training.step_memory:CheckpointedStep",
    "training_memory": "training.step_memory:TrainingMemory",
    "data_parallel": "training.data_parallel:DataParallel",
    "overlap": "training.data_parallel:Overlap",
    "block_part": "training.layers:BlockPart",
    "layer_pass": "training.layers:LayerPass",
    "optimizer_update": "training.optimizer:OptimizerUpdate",
    "input_pipeline": "training.input_pipeline:InputPipeline",
    "transfer": "training.transfer:Transfer",
}


@functools.cache
def find_workload(name: str) -> Workload[Any]:
    """The operator, or other subject of cases, of that name. Raises UserError that names those there are."""
    if ":" in name:  # FILE.py:function, package.module:function or FILE.py::test, which are a user's
        users: Workload[Any] = importlib.import_module("pyperf_suite.user_kernels.workload").UserKernel(name)
        return users
    if name in WORKLOADS:
        module, _, kind = WORKLOADS[name].partition(":")
        found = getattr(importlib.import_module(f"{__name__}.{module}"), kind)
        made: Workload[Any] = found if isinstance(found, Workload) else found()
        return made
    if name.isidentifier() and importlib.util.find_spec(f"{__name__}.{name}"):
        own: Workload[Any] | None = getattr(importlib.import_module(f"{__name__}.{name}"), "WORKLOAD", None)
        if own is not None:
            return own
    for probe in extensions("probes"):
        with contextlib.suppress(UserError):  # one that cannot be imported brings nothing
            brought: Workload[Any] | None = getattr(load("probes", probe), "workload", None)
            if brought is not None and brought.name == name:
                return brought
    raise UserError(f"Unknown operator {name!r}: choose from {', '.join(sorted(WORKLOADS))}.")
