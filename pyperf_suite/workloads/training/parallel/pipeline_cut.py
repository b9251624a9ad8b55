"""Stages of a pipeline, and torch's own schedules over them: 1F1B, or interleaved where ranks hold several chunks."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence
from typing import Any

from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters


def stages_of(parameters: ParallelStepParameters, pipeline_rank: int) -> list[int]:
    """Numbers of the stages that a rank of the pipeline holds: every pipeline-th from its own."""
    return [pipeline_rank + chunk * parameters.pipeline for chunk in range(parameters.chunks)]


class Pipeline:
    """One rank's stages, called for a whole iteration at once."""

    def __init__(self, calls: Sequence[Any], parameters: ParallelStepParameters, mesh: Any, place: str) -> None:
        """`calls` are this rank's parts as data parallelism has wrapped them, in order of their stages."""
        pipelining: Any = importlib.import_module("torch.distributed.pipelining")
        p, self.torch = parameters, importlib.import_module("torch")
        group = mesh["pp"].get_group()
        numbers = stages_of(p, mesh["pp"].get_local_rank())
        count = p.pipeline * p.chunks
        self.is_first, self.is_last = 0 in numbers, count - 1 in numbers
        device = self.torch.device(place)
        stages = [
            pipelining.PipelineStage(call, number, count, device, *self._shapes(p, number, count), group=group)
            for call, number in zip(calls, numbers, strict=True)
        ]
        # The loss is the last part's result: of logits that were returned, the schedule would keep every micro-batch's.
        options = {"loss_fn": lambda loss, _targets: loss.sum() / p.micro_batches, "scale_grads": False}
        if p.chunks == 1:
            self._schedule: Any = pipelining.Schedule1F1B(stages[0], p.micro_batches, **options)
        else:
            self._schedule = pipelining.ScheduleInterleaved1F1B(stages, p.micro_batches, **options)
        names = inspect.signature(self._schedule.step).parameters
        self._leave_out = {"return_outputs": False} if "return_outputs" in names else {}

    def run(self, tokens: Any, targets: Any) -> None:
        """Forward and backward of all micro-batches, which lie one after the other along the first axis."""
        inputs = (tokens,) if self.is_first else ()
        wanted = {"target": targets, "targets": targets} if self.is_last else {}
        self._schedule.step(*inputs, **wanted, **self._leave_out)

    def _shapes(self, p: ParallelStepParameters, number: int, count: int) -> tuple[Any, Any]:
        """What a stage takes and returns of one micro-batch, without data."""
        torch = self.torch
        tokens = torch.empty(p.batch, p.seq, dtype=torch.int64, device="meta")
        # What needs a gradient is sent one back.
        between: Any = {"device": "meta", "requires_grad": True}
        x = torch.empty(p.batch, p.seq // p.tensor, p.hidden, dtype=getattr(torch, p.dtype), **between)
        loss = torch.empty(1, dtype=torch.float32, **between)
        return (tokens if number == 0 else x,), (loss if number == count - 1 else x,)
