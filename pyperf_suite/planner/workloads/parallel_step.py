"""A whole training iteration of a GPT cut over data-, tensor- and pipeline-parallel ranks, by torch's own engine.

Forward and backward of all micro-batches, exchange of gradients, AdamW's update; the gradients are compared with those
of one process. Ranks lie as (pipeline, data, tensor), tensor innermost. The whole model is drawn from one seed on every
rank, which then keeps its own part. The first check counts what is allocated: the kernel's details then have, as the
most of any rank and for each under `rank_bytes`, `parameter_bytes`, `gradient_bytes` and `optimizer_bytes`
(cuts.DataCut.allocated), and `peak_bytes`, the most of a whole iteration. `resident_bytes`, on a GPU `reserved_bytes`,
is what the system sees, and `capacity_bytes` what there is for a rank.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import importlib.util
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware import memory
from pyperf_suite.hardware.memory import resident_peak_bytes
from pyperf_suite.planner.workloads.parallel_layout import DEEPSPEED, ParallelStepParameters
from pyperf_suite.ranks.launch import rank_environment
from pyperf_suite.workloads.on_ranks import (
    DTYPES,
    OnRanks,
    OverGloo,
    OverNccl,
    RankSteps,
    agree,
    do_together,
    same_on_all,
    seed_of,
    torch_place,
)
from pyperf_suite.workloads.training import Checkpointing
from pyperf_suite.workloads.workload import Checked, ExecutionContext, Kernel, Transfers, Work, by_name

# Bytes of a parameter of the whole model in a single process: itself, a gradient, and the float32 sum of gradients.
WHOLE_BYTES = 4 + 4 + 4


class ParallelSteps(RankSteps):
    """Iterations of one rank."""

    def __init__(self, parameters: ParallelStepParameters, rank: int, group: Any, where: str) -> None:
        super().__init__(parameters, rank, group, where)
        from torch.distributed.device_mesh import init_device_mesh

        from pyperf_suite.planner.workloads import cuts
        from pyperf_suite.workloads.training import gpt

        torch, p, self._cuts, self._gpt = self.torch, parameters, cuts, gpt
        shape = (p.pipeline, p.data, p.tensor)
        self._mesh = init_device_mesh(torch.device(where).type, shape, mesh_dim_names=("pp", "dp", "tp"))
        self.parts = self._own_parts()
        self.data = cuts.cut_by_data(self.parts, p, self._mesh)
        self._pipeline = cuts.Pipeline(self.data.calls, p, self._mesh, where) if p.pipeline > 1 else None
        self._batches = [self._drawn(self._mesh["dp"].get_local_rank(), micro) for micro in range(p.micro_batches)]
        self._all_tokens, self._all_targets = (torch.cat(kind) for kind in zip(*self._batches, strict=True))
        self._seeded = self.data.seeded()
        self._due: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._observed, self._steps = False, 0
        words = [self.data.path]
        words += ["DTensor tensor parallel, sequence parallel"] if p.tensor > 1 else []
        words += ["1F1B" if p.chunks == 1 else "interleaved 1F1B"] if p.pipeline > 1 else []
        if p.dtype != "float32":
            words += [f"{p.dtype} {'over float32 shards' if p.is_sharded else 'throughout'}"]
        self.kernel = Kernel("parallel_step", ", ".join(words), self._torch_details())

    def poison(self, index: int | None = None) -> None:
        with self.torch.no_grad():
            self.data.restore(self._seeded)
            for _, state in self.data.moments():
                state.zero_()
        self.data.clear()
        self._steps = 0

    def step(self) -> None:
        self._steps += 1
        self.data.clear()
        with self._cuts.loss_cut_by_vocabulary(self._parameters):
            if self._pipeline is not None:
                self._pipeline.run(self._all_tokens, self._all_targets)
            else:
                for index, (tokens, targets) in enumerate(self._batches):
                    with self.data.micro_batch(index == len(self._batches) - 1):
                        self.data.backward(self.data.calls[0](tokens, targets).sum(), len(self._batches))
        self.data.finish()

    def verify_last(self, index: int = 0) -> Checked:
        exact, scales = self._due = self._due or self._single_process()
        if self.data.is_watched or self._steps > 1:
            # Weights are no longer the seed's, or the engine has cleared the gradients: one iteration more, from it.
            self.poison()
            self.data.watch(self.step)
        results = {
            f"the gradient of {name}": _whole(self.data.gradient(weight), self._where)
            for name, weight in self._named_weights()
        }
        weights = (self._cuts.local(each) for each in self.data.weights)
        same = self._parameters.is_sharded or same_on_all(weights, self._mesh["dp"].get_group(), self._where)
        wrong = ["updated weights differ between data-parallel ranks"] if not same else []
        checked = self.verdict(results, exact, scales, *wrong)
        if not self._observed:
            self._observed, mine = True, self._allocations()
            # The most of any rank of each figure, and under `rank_bytes` every rank's, in order.
            row = self.torch.tensor(list(mine.values()), dtype=self.torch.int64, device=self._where)
            rows = [self.torch.empty_like(row) for _ in range(self._parameters.ranks)]
            self.torch.distributed.all_gather(rows, row)
            columns = dict(zip(mine, self.torch.stack(rows).T.tolist(), strict=True))
            most = {name: max(column) for name, column in columns.items()}
            self.kernel = replace(self.kernel, details={**self.kernel.details, **most, "rank_bytes": columns})
        return checked

    def close(self) -> None:
        self._pipeline = None
        self.parts, self._batches, self._seeded, self._due = [], [], [], None
        del self.data

    def _allocations(self) -> dict[str, int]:
        """Bytes on this rank after an iteration, and the most that one more holds."""
        from pyperf_suite.workloads.training import held_bytes

        cuda, sizes = self.torch.cuda, self.data.allocated()
        if not self.is_gpu:
            if sizes:
                self.data.clear()
                before = sum(self.data.allocated().values())
                sizes["peak_bytes"] = before + held_bytes.peak_bytes(self.step, self.torch.device("cpu"))
            sizes["resident_bytes"] = resident_peak_of(self.step)
            # An equal share of what is free, and its own.
            ranks_here = -(-self._parameters.ranks // max(1, rank_environment().nodes))
            return sizes | {"capacity_bytes": sizes["resident_bytes"] + memory.available_bytes() // ranks_here}
        cuda.reset_peak_memory_stats(self._where)
        self.step()
        cuda.synchronize(self._where)
        sizes["peak_bytes"] = int(cuda.max_memory_allocated(self._where))
        sizes["reserved_bytes"] = int(cuda.max_memory_reserved(self._where))
        return sizes | {"capacity_bytes": int(cuda.mem_get_info(self._where)[1])}

    def _own_parts(self) -> list[Any]:
        p = self._parameters
        dtype = getattr(self.torch, "float32" if p.is_sharded else p.dtype)
        each = p.layers // (p.pipeline * p.chunks)
        parts = []
        for stage in self._cuts.stages_of(p, self._mesh["pp"].get_local_rank()):
            part = self._cuts.ModelPart(self._gpt.build(p), stage * each, (stage + 1) * each, p.layers)
            part = part.to(self._where, dtype)
            if p.tensor > 1:
                self._cuts.cut_by_tensor(part, p, self._mesh["tp"])
            parts.append(part)
        return parts

    def _named_weights(self) -> list[tuple[str, Any]]:
        return [named for part in self.parts for named in part.named_weights()]

    def _drawn(self, data_rank: int, micro: int) -> tuple[Any, ...]:
        p = self._parameters
        return tuple(each.to(self._where) for each in self._gpt.inputs(p, seed_of(data_rank, micro, p.micro_batches)))

    def _single_process(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Gradients of this rank's weights over the global batch, and how far honest rounding moves each element.

        Each rank computes its share of the batch whole, with weights as they are rounded for products.
        """
        from pyperf_suite.workloads.rounding import Rounding, exact_and_scales

        p, where = self._parameters, self._room_for_whole()
        tokens = p.tokens * p.micro_batches
        rounding = Rounding.of(p.dtype, max(p.width, p.hidden, p.vocab, tokens))
        sums = 0 if self.is_gpu or p.dtype == "float32" else tokens
        run, additions = functools.partial(self._over_all, where), p.data * p.micro_batches + 1
        return exact_and_scales(run, rounding, self._rank, where, sums=sums, additions=additions)

    def _over_all(self, where: str, wide: Any, rounded: AbstractContextManager[Any]) -> dict[str, Any]:
        """Gradients of this rank's weights by name; every rank computes its share of the batches, in that context.

        In the type `wide`; on a GPU in float32.
        """
        torch, p = self.torch, self._parameters
        wide = wide if where == "cpu" else torch.float32
        attention = "explicit" if p.attention == "explicit" else "sdpa"
        model = self._gpt.build(replace(p, checkpointing=Checkpointing(), attention=attention))
        model = model.to(getattr(torch, p.dtype)).to(where, wide)
        pairs = [(rank, micro) for rank in range(p.data) for micro in range(p.micro_batches)]
        batches = (
            (tuple(each.to(where) for each in self._drawn(*pair)), None, 1 / len(pairs))
            for pair in pairs[self._rank :: p.ranks]
        )
        order = self._cuts.rows_by_rank(p) if p.tensor > 1 else None
        names = {name for name, _ in self._named_weights()}
        with rounded:
            _, sums = self._gpt.summed(model, batches, wide)
        grads = {}
        for (name, _), mine in zip(model.named_parameters(), sums, strict=True):
            everyones = mine.to(self._where)
            torch.distributed.all_reduce(everyones)
            if name in names:
                due = everyones.cpu().double()
                grads[f"the gradient of {name}"] = due if order is None or self._cuts.FUSED not in name else due[order]
        return grads

    def _room_for_whole(self) -> str:
        """The device with room for the whole model.

        On a GPU unless weights, gradients and their float32 sums would take over half of what is free on any rank.
        """
        if not self.is_gpu:
            return self._where
        torch = self.torch
        torch.cuda.empty_cache()
        needed = WHOLE_BYTES * self._parameters.dimensions.parameters
        fits = torch.tensor([int(2 * needed < torch.cuda.mem_get_info(self._where)[0])], device=self._where)
        torch.distributed.all_reduce(fits, op=torch.distributed.ReduceOp.MIN)
        return self._where if int(fits) else "cpu"


def resident_peak_of(call: Callable[[], object]) -> int:
    """The largest resident set of this process during `call()`; where the kernel keeps no maximum, that behind it.

    What was freed before is first given back to the system, where the C library can.
    """
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
    has_maximum = False
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
        has_maximum = True
    call()
    return resident_peak_bytes() if has_maximum else int(psutil.Process().memory_info().rss)


def _whole(tensor: Any, where: str) -> Any:
    """All ranks' shards together; those that lie in the CPU's memory where the ranks exchange."""
    return tensor.to(where).full_tensor() if hasattr(tensor, "full_tensor") else tensor


def require_possible(parameters: ParallelStepParameters, where: str) -> None:
    """Raise Unsupported for what torch cannot combine, naming the nearest that works."""
    from pyperf_suite.workloads.training import gpt

    torch: Any = importlib.import_module("torch")
    p = parameters
    if p.engine == DEEPSPEED:
        require_deepspeed(where)
    gpt.require_attention(p, where, getattr(torch, p.dtype))
    if p.pipeline > 1 and p.micro_batches < p.pipeline:
        raise Unsupported(
            f"torch's 1F1B needs as many micro-batches as stages, but there are {p.micro_batches} for {p.pipeline}: "
            f"ask for micro_batches={p.pipeline}."
        )


def require_deepspeed(where: str) -> None:
    """Raise Unsupported where DeepSpeed is not installed, or its import fails."""
    if importlib.util.find_spec(DEEPSPEED) is None:
        raise Unsupported(
            "DeepSpeed is not installed: install it with `pip install deepspeed`, or ask for engine=torch."
        )
    os.environ.setdefault("DS_ACCELERATOR", "cpu" if where == "cpu" else "cuda")
    try:
        importlib.import_module(DEEPSPEED)
    except Exception as error:  # it looks for compilers and devices as it is imported
        raise Unsupported(f"DeepSpeed cannot be imported here ({type(error).__name__}: {error!s:.200}).") from None


def _built(parameters: ParallelStepParameters, place: ExecutionContext, joined: Any) -> Transfers:
    group, deadline_s = place.ranks, place.deadline_s
    possible = "look for what torch can combine"
    agree(group, possible, lambda: require_possible(parameters, torch_place(place)), deadline_s)
    return do_together(group, "build parts", lambda: ParallelSteps.of(parameters, place, joined), deadline_s)


class ParallelStep(OnRanks[ParallelStepParameters]):
    """Iterations of all ranks together; each compares its gradients with those of a single process."""

    name = "parallel_step"
    parameters_type = ParallelStepParameters
    implementations = by_name(OverGloo(_built), OverNccl(_built))
    # A layout must not see allocations or damage that the one before it left.
    fresh_ranks = True

    def work(self, parameters: ParallelStepParameters) -> Work:
        return Work(bytes=DTYPES[parameters.dtype] * parameters.dimensions.parameters if parameters.data > 1 else 0)


WORKLOAD = ParallelStep()
