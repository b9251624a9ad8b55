"""One training step of the transformer, or a part of it, as a workload: in any precision, checkpointed or compiled."""

from __future__ import annotations

import importlib.util
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Annotated, Any

import numpy as np

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.hardware import memory
from pyperf_suite.laws.training.memory import FLOAT, ActivationPolicy, kept_bytes
from pyperf_suite.laws.transformer import PASSES
from pyperf_suite.measure.tolerance import computed_anew
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.backends import (
    RESULT,
    ByTorch,
    ComparedLaunches,
    ExpectedOutputs,
    TorchDevice,
    use_products_of,
)
from pyperf_suite.workloads.operands import torch_name
from pyperf_suite.workloads.training import ATTENTIONS, Checkpointing, TransformerShape, requested_flop
from pyperf_suite.workloads.training.optimizer import OptimizerState, compared_update, tensor_states
from pyperf_suite.workloads.workload import Checked, Kernel, Observed, Work, Workload, by_name, together

# How weights are kept and how products are computed: "autocast" keeps float32 weights and casts at each product.
PRECISIONS = ("float32", "tfloat32", "bfloat16", "float16", "autocast_bfloat16", "autocast_float16")

# Bytes of an element, and AdamW's moments, each in the type of its weight.
HALF, DOUBLE = 2, 8
MOMENTS = 2

# Forward alone, with what backward needs being kept; with backward; with AdamW's update as well.
PARTS = ("forward", "step", "train")

# How long autocast's casts of weights are kept. "iteration": a context around each forward pass, as torch advises;
# "nested": the same inside one context around the whole step, which alone drops them; "off": as nested, but with
# cache_enabled=False, so that each use casts anew.
CAST_CACHES = ("iteration", "nested", "off")

# Sequences at a time of which float64 gradients are computed: their scores take four times a half precision's memory.
REFERENCE_SEQUENCES = 4

# Learning rate of AdamW's updates.
LEARNING_RATE = 1e-4
DECAY = 0.01


@dataclass(frozen=True)
class TrainingStepParameters(TransformerShape):
    """A transformer, the precision it is trained in, the part of a step that is timed, and how it is taken.

    A step has `micro_batches` forward and backward passes whose gradients add up; for `cast_cache` see CAST_CACHES. It
    may use `workers` CPU cores, and hold `budget_bytes` in all; 0 is all that the device has free.
    """

    precision: Annotated[str, OneOf(PRECISIONS)] = "float32"
    part: Annotated[str, OneOf(PARTS)] = "step"
    compiled: bool = False
    workers: int = 1
    micro_batches: Annotated[int, Within(1)] = 1
    cast_cache: Annotated[str, OneOf(CAST_CACHES)] = CAST_CACHES[0]
    budget_bytes: Annotated[int, Within(0)] = 0

    @property
    def updates(self) -> bool:
        return self.part == "train"

    @property
    def goes_back(self) -> bool:
        return self.part != "forward"

    @property
    def is_autocast(self) -> bool:
        return self.precision.startswith("autocast_")

    @property
    def element(self) -> str:
        return self.precision.removeprefix("autocast_")

    @property
    def weights(self) -> str:
        return self.precision if self.precision in ("bfloat16", "float16") else "float32"

    def keeping(self, device: str) -> ActivationPolicy:
        """The same for the law of kept activations, on a "cpu" or a "cuda"."""
        return ActivationPolicy(
            element_bytes=FLOAT if self.element in ("float32", "tfloat32") else HALF,
            stream_bytes=FLOAT if self.weights == "float32" else HALF,
            dropout=self.dropout > 0,
            attention=ATTENTIONS[self.attention],
            checkpointing=self.checkpointing.kind,
            every=self.checkpointing.every,
            ends=self.has_logits,
            device="cuda" if device == "cuda" else "cpu",
        )

    @property
    def state_bytes(self) -> int:
        each = FLOAT if self.weights == "float32" else HALF
        return int(self.dimensions.parameters) * each * (2 + (MOMENTS if self.updates else 0))

    @property
    def step_bytes(self) -> int:
        """The state, and what forward keeps for backward, on either kind of device."""
        kept = kept_bytes(self.dimensions, self.batch, self.seq, self.keeping("cuda"))
        return self.state_bytes + int(kept.total)

    def validate(self) -> None:
        super().validate()
        if self.cast_cache != CAST_CACHES[0] and not self.is_autocast:
            raise UserError(f"{self.precision} casts no weights: leave cast_cache={self.cast_cache} out.")

    def require_reference(self, sequences: int) -> None:
        """Raise Unsupported where the host has no room for float64 gradients of `sequences` sequences at a time."""
        # Attention is written out; the model is kept, its gradients, the exact ones, rounded ones, and their limits.
        keeping = ActivationPolicy(DOUBLE, DOUBLE, attention="explicit", ends=self.has_logits)
        kept = kept_bytes(self.dimensions, sequences, self.seq, keeping).total
        model = self.dimensions
        ends = model.outer_parameters + 2 * model.layer_parameters
        compared = model.parameters if self.compares_all else ends
        nbytes, available = int(model.parameters + 4 * compared) * DOUBLE + int(kept), memory.available_bytes()
        if nbytes > available:
            raise Unsupported(
                f"What this is checked by, in float64, takes {nbytes / 1e9:.1f} GB, but {available / 1e9:.1f} GB of "
                "memory are free: ask for smaller dimensions."
            )


class TorchSteps(ComparedLaunches):
    """Steps of the model of gpt.py on one batch, by torch's autograd; each makes its gradients anew."""

    def __init__(self, parameters: TrainingStepParameters, seed: int, where: TorchDevice) -> None:
        from pyperf_suite.workloads import rounding
        from pyperf_suite.workloads.training import gpt, held_bytes

        super().__init__(where)
        self._p, self._seed, torch, p = parameters, seed, where.torch, parameters
        use_products_of(where, p.element)
        gpt.require_attention(p, where.device, getattr(torch, torch_name(p.element)))
        self._gpt, self._held_bytes, self._rounding = gpt, held_bytes, rounding
        self.model = gpt.build(p, seed).to(where.device, getattr(torch, p.weights))
        self.inputs = tuple(self._placed(each) for each in gpt.inputs(p, seed))
        if p.compiled:
            if where.is_gpu:
                if importlib.util.find_spec("triton") is None:
                    raise Unsupported("torch.compile needs Triton on a GPU, and it is not installed.")
            elif shutil.which(os.environ.get("CXX", "g++")) is None:
                raise Unsupported("torch.compile needs a C++ compiler on a CPU: install g++, or name one in CXX.")
        self._call = torch.compile(self.model) if p.compiled else self.model
        weights = list(self.model.parameters())
        self._optimizer = torch.optim.AdamW(weights, LEARNING_RATE, weight_decay=DECAY) if p.updates else None
        self._upstream: Any = None
        self._result: Any = None
        self._shares_reference = not where.is_gpu
        self._due: dict[int, ExpectedOutputs] = {}
        if p.updates:
            self.unchecked = "Each step starts from the weights that the last one left."
        elif p.dropout:
            self.unchecked = "Each step drops other elements."
        details = {"parameters": sum(each.numel() for each in weights), **where.details()}
        self.kernel = Kernel("transformer_step", "compiled" if p.compiled else "eager", details)

    def launch(self, index: int) -> None:
        self.passes()
        if self._optimizer is not None:
            self._optimizer.step()

    def passes(self) -> None:
        """A step without its update."""
        p = self._p
        around_all = p.cast_cache != CAST_CACHES[0]
        if p.goes_back:
            self.model.zero_grad(set_to_none=True)
        with self._autocast() if around_all else nullcontext():
            for _ in range(p.micro_batches):
                self._result = None
                result = self.forward()
                self._result = result.detach()
                if p.goes_back:
                    # Outside of autocast, as torch advises; leaving an inner context drops no casts.
                    with self._autocast(enabled=False) if around_all else nullcontext():
                        self.backward(result)

    def forward(self) -> Any:
        with self._precision():
            return self._call(*self.inputs)

    def backward(self, result: Any) -> None:
        result.backward(self._above() if result.ndim else None)

    def check(self) -> Checked:
        """A step without dropout, and with the seeded weights where it updates them; then every weight's update too."""
        if self._p.updates:
            assert self._optimizer is not None
            self.model.load_state_dict(self._seeded().state_dict())
            self._optimizer.state.clear()
        self.due()
        self.poison()
        with self._modules_with("dropout", 0.0):
            self.launch(0)
        return together([self.verify_last(0), *([self._updated()] if self._p.updates else ())])

    def poison(self, index: int | None = None) -> None:
        self._result = None
        self.model.zero_grad(set_to_none=True)

    def results(self, index: int) -> Mapping[str, Any]:
        compared = self._gpt.compared_weights(self.model, self._p) if self._p.goes_back else {}
        return {RESULT: self._result} | {name: weight.grad for name, weight in compared.items()}

    def due(self) -> ExpectedOutputs:
        """Return the expected results of a step by the seeded weights: on a CPU computed once for a run's processes."""
        sequences = len(self.inputs[0])
        if sequences not in self._due:
            backward = f"with {self._p.micro_batches} backward passes" if self._p.goes_back else ""
            model = f"{self._plain()} in {self._p.precision}"
            key = f"step of {model} {backward} seed {self._seed}, first {sequences} sequences"
            keep = scratch.shared(key) if self._shares_reference else computed_anew
            reference = partial(self._where_there_is_room, self._computed_on)
            with warnings.catch_warnings():
                # The arrays, which other processes map as well, are not writable, and nobody writes here.
                warnings.simplefilter("ignore", UserWarning)
                pairs = {
                    name: self._where.torch.from_numpy(np.asarray(pair))
                    for name, pair in keep("exact and scales", reference).items()
                }
            exact, scales = ({name: pair[part] for name, pair in pairs.items()} for part in (0, 1))
            self._due[sequences] = ExpectedOutputs(exact, scales)
        return self._due[sequences]

    def _above(self) -> Any:
        if self._upstream is None:
            generator = self._where.torch.Generator().manual_seed(self._seed + 1)
            self._upstream = self._placed(self._where.torch.randn(self.inputs[0].shape, generator=generator))
        return self._upstream

    def _plain(self) -> TransformerShape:
        shape = TransformerShape(**{each.name: getattr(self._p, each.name) for each in fields(TransformerShape)})
        return replace(shape, attention="explicit", checkpointing=Checkpointing(), dropout=0.0)

    def _seeded(self) -> Any:
        return self._gpt.build(self._plain(), self._seed).to(getattr(self._where.torch, self._p.weights))

    def _computed_on(self, device: Any) -> dict[str, Any]:
        p = self._p
        if str(device) == "cpu":
            p.require_reference(min(len(self.inputs[0]), REFERENCE_SEQUENCES))
        model = self._seeded().to(device)

        def run(dtype: Any, context: AbstractContextManager[Any]) -> dict[str, Any]:
            placed = model.to(dtype)
            with context:
                return self._by_formula(placed, device, dtype)

        exact, scales = self._rounding.exact_and_scales(
            run,
            self._rounding.Rounding.of(p.element, max(p.width, p.hidden, p.vocab, p.tokens)),
            self._seed + 2,
            device,
            # Weights that are cast for products are rounded too.
            weights=p.is_autocast or p.element == "tfloat32",
            sums=0 if self._where.is_gpu or p.weights == "float32" else p.tokens,
            additions=p.micro_batches,
        )
        times = {name: 1 if name == RESULT else p.micro_batches for name in exact}
        stack = self._where.torch.stack
        return {name: stack((exact[name], scales[name])).mul_(times[name]).cpu().numpy() for name in exact}

    def _by_formula(self, model: Any, device: Any, dtype: Any) -> dict[str, Any]:
        """Result and gradients of the first step, some sequences at a time: those of a mean are a mean."""
        torch, count, is_loss = self._where.torch, len(self.inputs[0]), bool(self._p.vocab)

        def batches() -> Iterator[tuple[Any, Any, float]]:
            for first in range(0, count, REFERENCE_SEQUENCES):
                part = [each[first : first + REFERENCE_SEQUENCES].to(device) for each in self.inputs]
                upstream = None
                if self._p.goes_back and not is_loss:
                    upstream = self._above()[first : first + REFERENCE_SEQUENCES].to(device, dtype)
                inputs = tuple(each.to(dtype) if each.is_floating_point() else each for each in part)
                yield inputs, upstream, len(part[0]) / count if is_loss else 1.0

        weights = self._gpt.compared_weights(model, self._p)
        results, sums = self._gpt.summed(model, batches(), torch.float64, self._p.goes_back, list(weights.values()))
        found = {RESULT: torch.stack(results).sum() if is_loss else torch.cat(results)}
        return found | (dict(zip(weights, sums, strict=True)) if self._p.goes_back else {})

    def _updated(self) -> Checked:
        """Each element of weights and moments after AdamW's first update, by the gradients that are there."""
        assert self._optimizer is not None
        seeded, checks = dict(self._seeded().named_parameters()), []
        for name, weight in self.model.named_parameters():
            before = OptimizerState(seeded[name].detach().to(weight.device), weight.grad, {})
            after = OptimizerState(weight.detach(), None, tensor_states(self._optimizer.state[weight]))
            found = compared_update("AdamW", before, after, 1, self._p.weights, LEARNING_RATE, DECAY)
            checks.append(replace(found, first=found.first and f"{name}: {found.first}"))
        return together(checks)

    @contextmanager
    def _modules_with(self, name: str, value: Any) -> Iterator[None]:
        """Every module that has this attribute has this value of it, as long as the block lasts."""
        kept = [(module, getattr(module, name)) for module in self.model.modules() if hasattr(module, name)]
        for module, _ in kept:
            setattr(module, name, value)
        try:
            yield
        finally:
            for module, before in kept:
                setattr(module, name, before)

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes of weights and gradients, and of what forward keeps for backward: activations, and casts of weights."""
        watch, weights = self._held_bytes, list(self.model.parameters())
        kept = watch.kept(self.model, self.forward)
        self.launch(0)  # which leaves gradients, and makes the optimizer's state
        return {
            "activations": kept.activations,
            "weight_copies": kept.weight_copies,
            "weights": watch.bytes_of(weights),
            "gradients": watch.bytes_of([each.grad for each in weights]),
        }

    def added_bytes(self, call: Callable[[], None]) -> int:
        """The most that a call adds at any time to what there is without gradients."""
        self.poison()
        return int(self._held_bytes.peak_bytes(call, self._where.device))

    def _precision(self) -> AbstractContextManager[Any]:
        return self._autocast() if self._p.is_autocast else nullcontext()

    def _autocast(self, enabled: bool = True) -> AbstractContextManager[Any]:
        torch, cached = self._where.torch, self._p.cast_cache != "off"
        context: AbstractContextManager[Any] = torch.autocast(
            self._where.device.type, getattr(torch, self._p.element), enabled=enabled, cache_enabled=cached
        )
        return context

    def _placed(self, tensor: Any) -> Any:
        dtype = getattr(self._where.torch, self._p.weights)
        return tensor.to(self._where.device, dtype if tensor.is_floating_point() else tensor.dtype)


class PrecisionSteps(TorchSteps):
    """Steps that report what they keep in memory, and how often autocast casts their weights."""

    def observed(self) -> Mapping[str, Observed]:
        """Bytes by kind, casts of weights in a step and their bytes; a GPU's peak by torch's allocator."""
        reported = self.bytes_by_kind()
        cast = self._held_bytes.casts(self.model, lambda: self.launch(0))
        reported["cast"] = sum(cast)
        if self._where.is_gpu:
            self.poison()
            there = self._where.torch.cuda.memory_allocated(self._where.device)
            reported["peak"] = there + self.added_bytes(lambda: self.launch(0))
        return {name: Observed("B", (figure,)) for name, figure in reported.items()} | {
            "casts": Observed("1", (len(cast),))
        }


class StepWorkload(Workload[TrainingStepParameters]):
    """Steps that take some of the `options` that a step has."""

    parameters_type: type = TrainingStepParameters
    options: tuple[str, ...] = ()

    def validate(self, parameters: TrainingStepParameters) -> None:
        super().validate(parameters)
        usual = {each.name: each.default for each in fields(parameters)}
        of_all = {each.name for each in fields(TransformerShape)} | {"precision"}
        for name, value in vars(parameters).items():
            if name not in (*of_all, *self.options) and value != usual[name]:
                raise UserError(f"A {self.name} takes no {name}: leave {name}={value} out.")

    def footprint_bytes(self, parameters: TrainingStepParameters) -> int:
        return parameters.step_bytes


class TrainingStep(StepWorkload):
    """Forward and backward of a transformer, and its update."""

    name = "training_step"
    options: tuple[str, ...] = ("part", "compiled", "workers")
    implementations: Mapping[str, Any] = by_name(ByTorch(TorchSteps))

    def work(self, parameters: TrainingStepParameters) -> Work:
        """Model FLOPs of the part, causal pairs alone (laws/transformer.py); what is recomputed is no work done."""
        flop = requested_flop(parameters) / (1 if parameters.goes_back else PASSES)
        return Work(parameters.micro_batches * round(flop))


class PrecisionStep(TrainingStep):
    """Forward and backward passes in one precision, with what they keep in memory reported with their time."""

    name = "precision_step"
    # The tensors that a compiled step keeps cannot be watched.
    options = ("workers", "micro_batches", "cast_cache")
    implementations = by_name(ByTorch(PrecisionSteps))
