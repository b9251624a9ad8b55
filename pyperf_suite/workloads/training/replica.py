"""One rank's copy of the model, its micro-batches, and the step in which gradients are exchanged.

The gradients that a step leaves are compared with those of a single process that sees every rank's batch, and with the
other ranks' bit for bit.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from pyperf_suite.laws.network.communication import bus_factor
from pyperf_suite.workloads.training.gradients import exchanged_limit, same_on_all, seed_of, summed
from pyperf_suite.workloads.training.rank_steps import timed_by_events, timed_by_host
from pyperf_suite.workloads.workload import Checked, Kernel, RankTimes, Transfers, together

if TYPE_CHECKING:
    from pyperf_suite.workloads.training.data_parallel import DataParallelParameters


class Replica(Transfers):
    """A model on a CPU, timed by the host's clock: gradients are exchanged when a step returns."""

    # No step changes the weights, and each makes its gradients anew.
    unchecked = ""

    def __init__(self, parameters: DataParallelParameters, rank: int, group: Any, place: str) -> None:
        from pyperf_suite.workloads.training import gpt

        torch: Any = importlib.import_module("torch")
        self.torch, self._parameters, self._rank, self._group, self._place = torch, parameters, rank, group, place
        gpt.require_attention(parameters, place, getattr(torch, parameters.dtype))
        # Equal on all ranks, as they are built from one seed.
        self.model: Any = gpt.build(parameters).to(place, getattr(torch, parameters.dtype))
        self._batches = self._micro_batches(self._ranks_here())
        self._due: list[Any] = []
        self.kernel = Kernel("data_parallel_step", self._path, self._details())
        self.call = self._wrapped(self.model)

    def poison(self, index: int | None = None) -> None:
        """Gradients are made anew in each step; one that nobody makes is missed."""
        self.model.zero_grad(set_to_none=True)

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        return timed_by_host(self.step, iterations, self._meet)

    def step(self) -> None:
        """Forward and backward of every micro-batch, with the exchange that was asked for."""
        self._run(self.call)
        if self._parameters.exchange == "after":
            self._exchange_all()

    def left(self, index: int = 0) -> Checked:
        """Each element of gradients against the single process's, and a digest of all against the other ranks'."""
        from pyperf_suite.workloads.training.rounding import compared

        p = self._parameters
        names = [f"the gradient of {name}" for name, _ in self.model.named_parameters()]
        self._due = self._due or self._single_process()
        exact = dict(zip(names, self._due, strict=True))
        terms = p.accumulate * (p.ranks if p.exchange != "none" else 1) + 1
        limits = {name: exchanged_limit(due, p.dtype, terms) for name, due in exact.items()}
        found = dict(zip(names, (each.grad for each in self.model.parameters()), strict=True))
        checked = compared(found, exact, limits)
        wrong = []
        if self._parameters.exchange in ("ddp", "after") and not self._same_on_all():
            wrong.append("gradients differ between ranks")
        wrong += self._other_buckets()
        return together([checked, Checked(len(wrong), 1, wrong[0] if wrong else "")])

    def close(self) -> None:
        self.call = self.model = None
        self._batches, self._due = [], []

    @property
    def _path(self) -> str:
        p = self._parameters
        return {"ddp": "DistributedDataParallel", "after": "all_reduce after backward", "none": "no exchange"}.get(
            p.exchange, "DataParallel"
        )

    def _details(self) -> dict[str, Any]:
        """What a record says of the exchange: bucket by bucket as the hook saw it, and bytes that this rank sent."""
        p = self._parameters
        weights = sum(each.numel() for each in self.model.parameters())
        buckets = [weights * self.torch.empty(0, dtype=getattr(self.torch, p.dtype)).element_size()]
        handed_over = sum(buckets) * p.exchanges
        if p.exchange == "ddp":
            seen = self._hooked()
            buckets, handed_over = seen[-(len(seen) // p.exchanges) :], sum(seen)
        found: dict[str, Any] = {"parameters": weights, "torch": self.torch.__version__}
        if p.exchange in ("ddp", "after"):
            sent = round(handed_over * float(bus_factor("all_reduce", p.ranks)))
            found |= {"buckets": buckets, "exchanges": p.exchanges, "wire_bytes": sent}
        if self._place == "cpu":
            found["threads"] = self.torch.get_num_threads()
        return found

    def _hooked(self) -> list[int]:
        """Bytes of every bucket of one whole step, in order, as a communication hook gets them.

        Of a copy and before anything is timed: a hook in Python takes time. The first step shows DDP the order in which
        gradients are made, by which it cuts its buckets anew; with a static graph the second one does.
        """
        sizes: list[int] = []
        count, group = self._parameters.ranks, self._group

        def counting(_state: Any, bucket: Any) -> Any:
            buffer = bucket.buffer()
            sizes.append(buffer.numel() * buffer.element_size())
            work = self.torch.distributed.all_reduce(buffer.div_(count), group=group, async_op=True)
            return work.get_future().then(lambda reduced: reduced.value()[0])

        # DDP compares annotations with its own classes, and these are text.
        counting.__annotations__ = {}
        counted = self._wrapped(copy.deepcopy(self.model))
        counted.register_comm_hook(None, counting)
        for _ in range(2 if self._parameters.static_graph else 1):
            self._run(counted)
        sizes.clear()
        self._run(counted)
        return sizes

    def _other_buckets(self) -> list[str]:
        """What to say where the timed model's buckets, once it has cut them, are not those that were counted."""
        if self._parameters.exchange != "ddp":
            return []
        told = self.call._get_ddp_logging_data()
        counted = list(self.kernel.details["buckets"])
        if not told.get("has_rebuilt_buckets") or "rebuilt_bucket_sizes" not in told:
            return []
        timed = [int(size) for size in str(told["rebuilt_bucket_sizes"]).split(",")]
        return [] if timed == counted else [f"buckets of {timed} bytes are timed, and {counted} were counted"]

    def _wrapped(self, model: Any) -> Any:
        """What is called: DDP around the model, DataParallel, or the model itself."""
        p = self._parameters
        if p.exchange == "dp":
            return self.torch.nn.DataParallel(model, device_ids=list(range(p.ranks)))
        if p.exchange != "ddp":
            return model
        ddp = self.torch.nn.parallel.DistributedDataParallel
        # Masks and positions are buffers that no step changes. Older versions of torch have another word for it.
        names = inspect.signature(ddp).parameters
        leave_buffers = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        return ddp(
            model,
            process_group=self._group,
            bucket_cap_mb=p.bucket_bytes / 2**20,
            static_graph=p.static_graph,
            **{leave_buffers: False},
        )

    def _run(self, call: Any) -> None:
        """All micro-batches; the weights' gradients are what they add up to."""
        call.zero_grad(set_to_none=True)
        last = len(self._batches) - 1
        for index, (inputs, upstream) in enumerate(self._batches):
            held: AbstractContextManager[Any] = nullcontext()
            if self._parameters.exchange == "ddp" and self._parameters.no_sync and index < last:
                held = call.no_sync()
            with held:
                _backward(call(*inputs), upstream)

    def _exchange_all(self) -> None:
        """One all_reduce of all gradients, copied together and back as a bucket is."""
        gradients = [each.grad for each in self.model.parameters()]
        together = self.torch.cat([each.flatten() for each in gradients]).div_(self._parameters.ranks)
        self.torch.distributed.all_reduce(together, group=self._group)
        for gradient, part in zip(gradients, together.split([each.numel() for each in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))

    def _ranks_here(self) -> list[int]:
        """Whose batches this process trains on."""
        return list(range(self._parameters.ranks)) if self._parameters.exchange == "dp" else [self._rank]

    def _micro_batches(self, ranks: Sequence[int]) -> list[tuple[tuple[Any, ...], Any]]:
        """Inputs of each micro-batch of those ranks together, and the gradient from above; None of a loss."""
        from pyperf_suite.workloads.training import gpt

        p, dtype = self._parameters, getattr(self.torch, self._parameters.dtype)

        def placed(parts: Sequence[Any]) -> Any:
            whole = self.torch.cat(list(parts))
            return whole.to(self._place, dtype if whole.is_floating_point() else whole.dtype)

        found = []
        for micro in range(p.accumulate):
            seeds = [seed_of(rank, micro, p.accumulate) for rank in ranks]
            drawn = [gpt.inputs(p, seed) for seed in seeds]
            upstream = None
            if not p.vocab:
                # Another seed than any input's. The mean over ranks, as of a loss.
                upstream = placed([gpt.inputs(p, 10**6 + seed)[0] for seed in seeds]) / len(ranks)
            found.append((tuple(placed(parts) for parts in zip(*drawn, strict=True)), upstream))
        return found

    def _single_process(self) -> list[Any]:
        """Each weight's gradient: the mean over ranks, each rank's being this process's own work.

        In float64, or on a GPU, whose models
        are large, where they are in float32: what is told apart is far above its rounding.
        """
        wide = self.torch.float64 if self._place == "cpu" else self.torch.float32
        everyone = range(self._parameters.ranks) if self._parameters.exchange != "none" else [self._rank]
        weights = list(self.model.parameters())
        batches = (batch for rank in everyone for batch in self._micro_batches([rank]))
        return summed(self.model, weights, batches, len(everyone), wide)

    def _same_on_all(self) -> bool:
        """Whether every rank holds the same bits."""
        gradients = (each.grad for each in self.model.parameters() if each.grad is not None)
        return same_on_all(gradients, self._group, self._place)

    def _meet(self) -> None:
        """Ranks learn of a block one after the other; what is timed begins for all at once."""
        if self._parameters.exchange != "dp":
            self.torch.distributed.barrier(self._group)


class GpuReplica(Replica):
    """The same on a GPU, timed by events around each step on torch's stream, which waits for the exchange."""

    def time(self, iterations: int, deadline_s: float) -> RankTimes:
        return timed_by_events(self.step, iterations, self._meet, self._place)


def _backward(result: Any, upstream: Any) -> None:
    """From the mean loss, one a GPU under DataParallel, or from the gradient of the last block's output."""
    if upstream is None:
        result.mean().backward()
    else:
        result.backward(upstream)
