"""One rank of a training step that is cut by data, tensor and pipeline: built, stepped, and compared with one process.

Ranks lie as (pipeline, data, tensor), tensor innermost. The whole model is drawn from one seed on every rank, which
then keeps its own part. The first check counts what is allocated: the kernel's details then have, as the most of any
rank and for each under `rank_bytes`, `parameter_bytes`, `gradient_bytes`, `bucket_bytes`, `optimizer_bytes` and
`counter_bytes` (see allocations.allocated), and `saved_activation_bytes` (allocations.most_saved), or on a GPU
`peak_bytes`, the allocator's most of a whole iteration.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

from pyperf_suite.errors import Unsupported
from pyperf_suite.workloads.training.gradients import exchanged_limit, same_on_all, seed_of, summed
from pyperf_suite.workloads.training.parallel.data_cut import SHARDED_FROM_STAGE, cut_by_data, local
from pyperf_suite.workloads.training.parallel.parameters import ParallelStepParameters
from pyperf_suite.workloads.training.parallel.pipeline_cut import Pipeline, stages_of
from pyperf_suite.workloads.training.parallel.tensor_cut import (
    FUSED,
    cut_by_tensor,
    loss_cut_by_vocabulary,
    rows_by_rank,
)
from pyperf_suite.workloads.training.rank_steps import timed_by_events, timed_by_host
from pyperf_suite.workloads.training.shape import Checkpointing
from pyperf_suite.workloads.workload import Checked, Kernel, RankTimes, Transfers, together

# Of a parameter of the whole model in a single process: itself, a gradient, and the float32 sum of gradients.
WHOLE_BYTES = 4 + 4 + 4


def require_possible(parameters: ParallelStepParameters, place: str) -> None:
    """Raise Unsupported for what torch cannot combine, naming the nearest that works."""
    from pyperf_suite.workloads.training import gpt

    torch: Any = importlib.import_module("torch")
    p = parameters
    gpt.require_attention(p, place, getattr(torch, p.dtype))
    if p.pipeline > 1 and p.micro_batches < p.pipeline:
        raise Unsupported(
            f"torch's 1F1B needs as many micro-batches as stages, but there are {p.micro_batches} for {p.pipeline}: "
            f"ask for micro_batches={p.pipeline}."
        )


class ParallelSteps(Transfers):
    """Iterations of one rank on a CPU, timed by the host's clock: gradients are exchanged when one returns."""

    def __init__(self, parameters: ParallelStepParameters, rank: int, place: str) -> None:
        """Of torch's default process group."""
        torch: Any = importlib.import_module("torch")
        from torch.distributed.device_mesh import init_device_mesh

        self.torch, self._parameters, self._rank, self._place = torch, parameters, rank, place
        p = parameters
        shape = (p.pipeline, p.data, p.tensor)
        self._mesh = init_device_mesh(torch.device(place).type, shape, mesh_dim_names=("pp", "dp", "tp"))
        self.parts = self._own_parts()
        self.data = cut_by_data(self.parts, p, self._mesh)
        self._pipeline = Pipeline(self.data.calls, p, self._mesh, place) if p.pipeline > 1 else None
        drawn = [self._drawn(self._mesh["dp"].get_local_rank(), micro) for micro in range(p.micro_batches)]
        self._batches = drawn
        self._all_tokens, self._all_targets = (torch.cat(kind) for kind in zip(*drawn, strict=True))
        self._seeded = [local(each.detach()).cpu().clone() for each in self.data.weights]
        self._due: tuple[dict[str, Any], dict[str, Any]] | None = None
        self._observed = False
        self.kernel = Kernel("parallel_step", self._path, self._details())

    def poison(self, index: int | None = None) -> None:
        """Put back the seeded weights and an optimizer that has seen no step; gradients are made anew in each."""
        with self.torch.no_grad():
            for weight, seeded in zip(self.data.weights, self._seeded, strict=True):
                local(weight).copy_(seeded)
            for _, state in self.data.moments():
                state.zero_()
        self.data.clear()

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        return timed_by_host(self.step, iterations, self._meet)

    def step(self) -> None:
        """One iteration: every micro-batch forward and backward, exchange, update."""
        self.data.clear()
        with loss_cut_by_vocabulary(self._parameters):
            if self._pipeline is not None:
                self._pipeline.run(self._all_tokens, self._all_targets)
            else:
                for index, (tokens, targets) in enumerate(self._batches):
                    with self.data.micro_batch(index == len(self._batches) - 1):
                        loss = self.data.calls[0](tokens, targets).sum()
                        (loss / len(self._batches)).backward()
        self.data.finish()

    def left(self, index: int = 0) -> Checked:
        """Each element of gradients of this rank's parts against a single process's, weights against other ranks'."""
        from pyperf_suite.workloads.training.rounding import compared

        exact, limits = self._due = self._due or self._single_process()
        found = {f"the gradient of {name}": self._whole(weight.grad) for name, weight in self._named_weights()}
        checked = compared(found, exact, limits)
        wrong = []
        if self._parameters.zero_stage < SHARDED_FROM_STAGE and not self._same_weights():
            wrong.append("updated weights differ between data-parallel ranks")
        if not self._observed:
            self._observed = True
            self.kernel = replace(self.kernel, details={**self.kernel.details, **self._everyones(self._allocations())})
        return together([checked, Checked(len(wrong), 1, wrong[0] if wrong else "")])

    def close(self) -> None:
        self._pipeline = None
        self.parts, self._batches, self._seeded, self._due = [], [], [], None
        del self.data

    @property
    def _path(self) -> str:
        p = self._parameters
        words = [self.data.path]
        words += ["DTensor tensor parallel, sequence parallel"] if p.tensor > 1 else []
        words += ["1F1B" if p.chunks == 1 else "interleaved 1F1B"] if p.pipeline > 1 else []
        if p.dtype != "float32":
            words += [f"{p.dtype} {'throughout' if p.zero_stage < SHARDED_FROM_STAGE else 'over float32 shards'}"]
        return ", ".join(words)

    def _details(self) -> dict[str, Any]:
        found: dict[str, Any] = {"torch": self.torch.__version__}
        if self._place == "cpu":
            found["threads"] = self.torch.get_num_threads()
        return found

    def _allocations(self) -> dict[str, int]:
        """Bytes on this rank after an iteration, and what one more iteration keeps for backward at most."""
        from pyperf_suite.workloads.training.parallel.allocations import allocated, most_saved

        return allocated(self.data) | {"saved_activation_bytes": most_saved(self.parts, self.step)}

    def _everyones(self, mine: dict[str, int]) -> dict[str, Any]:
        """Of each figure the most of any rank, and under `rank_bytes` every rank's, in order."""
        torch = self.torch
        row = torch.tensor(list(mine.values()), dtype=torch.int64, device=self._place)
        rows = [torch.empty_like(row) for _ in range(self._parameters.ranks)]
        torch.distributed.all_gather(rows, row)
        columns = dict(zip(mine, torch.stack(rows).T.tolist(), strict=True))
        return {**{name: max(column) for name, column in columns.items()}, "rank_bytes": columns}

    def _own_parts(self) -> list[Any]:
        """The parts of this rank's stages, on its device, cut over tensor-parallel ranks where there are several."""
        from pyperf_suite.workloads.training import gpt
        from pyperf_suite.workloads.training.parallel.part import Part

        p = self._parameters
        dtype = getattr(self.torch, p.dtype if p.zero_stage < SHARDED_FROM_STAGE else "float32")
        each = p.layers // (p.pipeline * p.chunks)
        parts = []
        for stage in stages_of(p, self._mesh["pp"].get_local_rank()):
            part = Part(gpt.build(p), stage * each, (stage + 1) * each, p.layers).to(self._place, dtype)
            if p.tensor > 1:
                cut_by_tensor(part, p, self._mesh["tp"])
            parts.append(part)
        return parts

    def _named_weights(self) -> list[tuple[str, Any]]:
        return [named for part in self.parts for named in part.named_weights()]

    def _drawn(self, data_rank: int, micro: int) -> tuple[Any, ...]:
        """Tokens and targets of a micro-batch of those data-parallel ranks, the same on each."""
        from pyperf_suite.workloads.training import gpt

        p = self._parameters
        return tuple(each.to(self._place) for each in gpt.inputs(p, seed_of(data_rank, micro, p.micro_batches)))

    def _whole(self, tensor: Any) -> Any:
        """All of a DTensor, gathered from the ranks that have it."""
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor

    def _single_process(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Gradients of this rank's weights over the global batch, each rank having computed its share of it whole.

        And by how much each element may be off. In float64 on a CPU, in float32 on a GPU, of the weights as they are
        rounded for products, with float64 sums; once as it is, and once rounded at random (see rounding.py).
        """
        from pyperf_suite.workloads.training.rounding import RoundedOperations, Rounding, limits

        p, place = self._parameters, self._room_for_whole()
        exact = self._over_all(place, nullcontext())
        tokens = p.batch * p.seq * p.micro_batches
        rounding = Rounding.of(p.dtype, max(p.width, p.hidden, p.vocab, tokens))
        moved = self._over_all(place, RoundedOperations(rounding, self._rank, place))
        allowed = limits(exact, moved, rounding, tokens if self._place == "cpu" and p.dtype != "float32" else 0)
        for name, due in exact.items():
            allowed[name] += exchanged_limit(due, p.dtype, p.data * p.micro_batches + 1)
        return exact, allowed

    def _over_all(self, place: str, rounded: AbstractContextManager[Any]) -> dict[str, Any]:
        """Gradients of this rank's weights by name; every rank computes its share of the batches, in that context."""
        from pyperf_suite.workloads.training import gpt

        torch, p = self.torch, self._parameters
        wide = torch.float64 if place == "cpu" else torch.float32
        attention = "explicit" if p.attention == "explicit" else "sdpa"
        model = gpt.build(replace(p, checkpointing=Checkpointing(), attention=attention))
        model = model.to(getattr(torch, p.dtype)).to(place, wide)
        pairs = [(rank, micro) for rank in range(p.data) for micro in range(p.micro_batches)]
        batches = (
            (tuple(each.to(place) for each in self._drawn(*pair)), None) for pair in pairs[self._rank :: p.ranks]
        )
        names, weights = zip(*model.named_parameters(), strict=True)
        order = rows_by_rank(p, torch) if p.tensor > 1 else None
        own = {name for name, _ in self._named_weights()}
        with rounded:
            sums = summed(model, weights, batches, len(pairs), wide)
        found = {}
        for name, mine in zip(names, sums, strict=True):
            everyones = mine.to(self._place)
            torch.distributed.all_reduce(everyones)
            if name in own:
                due = everyones.cpu().double()
                found[f"the gradient of {name}"] = due if order is None or FUSED not in name else due[order]
        return found

    def _room_for_whole(self) -> str:
        """Where the whole model can be beside what is there: on a GPU only if that has room on every rank."""
        return self._place

    def _same_weights(self) -> bool:
        return same_on_all((local(each) for each in self.data.weights), self._mesh["dp"].get_group(), self._place)

    def _meet(self) -> None:
        """Ranks learn of a block one after the other; what is timed begins for all at once."""
        self.torch.distributed.barrier()


class GpuParallelSteps(ParallelSteps):
    """The same on a GPU, timed by events around each iteration on torch's stream, which waits for the exchange."""

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        return timed_by_events(self.step, iterations, self._meet, self._place)

    def _allocations(self) -> dict[str, int]:
        from pyperf_suite.workloads.training.parallel.allocations import allocated

        cuda, found = self.torch.cuda, allocated(self.data)
        cuda.reset_peak_memory_stats(self._place)
        self.step()
        cuda.synchronize(self._place)
        return found | {"peak_bytes": int(cuda.max_memory_allocated(self._place))}

    def _room_for_whole(self) -> str:
        """On the CPU where weights, gradients and their float32 sums would take over half of what is free there."""
        torch = self.torch
        torch.cuda.empty_cache()
        needed = WHOLE_BYTES * self._parameters.dimensions.parameters
        fits = torch.tensor([int(2 * needed < torch.cuda.mem_get_info(self._place)[0])], device=self._place)
        torch.distributed.all_reduce(fits, op=torch.distributed.ReduceOp.MIN)
        return self._place if int(fits) else "cpu"
