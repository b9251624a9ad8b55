"""A training loop's input: batches that torch's DataLoader decodes, each followed by a model step of given length."""

from __future__ import annotations

import itertools
import multiprocessing
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.hardware import cpu
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.torch_device import TorchDevice
from pyperf_suite.workloads.training.data_files import KINDS, DataFiles, wrong_samples
from pyperf_suite.workloads.workload import (
    Checked,
    Implementation,
    Kernel,
    Observed,
    Place,
    Prepared,
    Workload,
    by_name,
)

# What a step of the model keeps busy: a device of its own, on which the host waits; or a core of the host.
MODELS = ("device", "host")

# How Python starts a process; which of them a system has is its own affair.
STARTS = ("fork", "forkserver", "spawn")

# Files are written first, and a case has minutes for all it does.
MOST_LOADERS, MOST_FILES, MOST_ITERATIONS, MOST_STEP_US = 256, 1 << 14, 1024, 10_000_000

# The last ones are told of; a standard visit sees far fewer.
MOST_TOLD = 4096

# Edge of the float32 product that a model's step is made of: well below a millisecond on a core, and on a GPU.
PRODUCT = {"cpu": 128, "cuda": 2048}


@dataclass(frozen=True)
class InputPipelineParameters:
    """A loader's settings, the files it reads, and the model it feeds.

    `loaders` is DataLoader's num_workers, 0 for loading in the training process; `prefetch` its prefetch_factor;
    `persistent` keeps its workers from epoch to epoch; `pinned` has batches copied from pinned memory while the host
    goes on. `start` is how workers are started. `data` is a kind of file, `files` how many there are. The model takes
    `step_us` microseconds of a device, or of a core of the host. What is timed is `iterations` at once, as several
    loaders hand out their batches in bursts.
    """

    data: Annotated[str, OneOf(KINDS)] = "text"
    loaders: Annotated[int, Within(0, MOST_LOADERS)] = 0
    prefetch: Annotated[int, Within(1, 1024)] = 2
    persistent: bool = True
    pinned: bool = False
    start: Annotated[str, OneOf(STARTS)] = "fork"
    model: Annotated[str, OneOf(MODELS)] = "device"
    step_us: Annotated[int, Within(0, MOST_STEP_US)] = 5000
    batch: Annotated[int, Within(1, MOST_FILES)] = 8
    files: Annotated[int, Within(1, MOST_FILES)] = 32
    iterations: Annotated[int, Within(1, MOST_ITERATIONS)] = 4

    def validate(self) -> None:
        """Raise UserError for an epoch without a batch."""
        if self.files < self.batch:
            raise UserError(f"{self.files} files do not fill a batch of {self.batch}: ask for more files.")


class TorchLoader(Implementation[InputPipelineParameters]):
    """torch.utils.data.DataLoader."""

    name = "torch"

    def prepare(self, parameters: InputPipelineParameters, place: Place) -> Prepared:
        """Write the files. Raises Unsupported for a decoder, a way to start processes or a GPU that is not there."""
        if parameters.start not in multiprocessing.get_all_start_methods():
            raise Unsupported(f"This system starts no process by {parameters.start}.")
        if parameters.pinned and place.device.kind == "cpu":
            raise Unsupported("Pinned memory is for copies to a GPU, and this case runs on the CPU.")
        return LoaderSteps(parameters, place.seed, TorchDevice(place.device, workers=1, queueing="open"))


class InputPipeline(Workload[InputPipelineParameters]):
    """Iterations of a training loop over files."""

    name = "input_pipeline"
    parameters_type = InputPipelineParameters
    implementations = by_name(TorchLoader())


class LoaderSteps(Prepared):
    """A loop over an epoch without end: where one begins, workers start, which is told apart (see `observed`).

    The host's clock is right on a GPU too, as an iteration ends when the device is done. While timed, a step's last
    batch is checked, before and after a whole epoch.
    """

    sees_more = True

    def __init__(self, parameters: InputPipelineParameters, seed: int, where: TorchDevice) -> None:
        self._parameters, self._where = parameters, where
        self._held = ExitStack()
        made = tempfile.TemporaryDirectory(prefix="pyperf_input_pipeline_", dir=scratch.folder())
        folder = self._held.enter_context(made)
        try:
            self._files: DataFiles = KINDS[parameters.data](Path(folder), parameters.files, seed)
            self._model = Model(where, parameters.model, parameters.step_us * 1e-6)
        except BaseException:
            self.close()
            raise
        self._batches: Iterator[Any] | None = None
        self._last: tuple[Any, Any] | None = None
        self._told: deque[tuple[float, float]] = deque(maxlen=MOST_TOLD)
        details = {"bytes_a_file": self._files.bytes_a_file, "products_a_step": self._model.products}
        details["cores"] = cpu.detect().usable_cores
        self.kernel = Kernel("DataLoader", parameters.data, {**details, **where.details()})

    def launch(self, index: int) -> None:
        if self._batches is None:
            self._batches = iter(self._loader(itertools.cycle(range(len(self._files)))))
            # What was prefetched while nobody took it is no rate of the loader's.
            for _ in range(self._parameters.loaders * self._parameters.prefetch):
                self._iterate()
        seconds = [self._iterate() for _ in range(self._parameters.iterations)]
        waited, modelled = (sum(column) / len(seconds) for column in zip(*seconds, strict=True))
        self._told.append((waited, modelled))

    def untimed(self, index: int) -> None:
        """A step whose times are not told of."""
        self.launch(index)
        self._told.pop()

    def poison(self, index: int | None = None) -> None:
        """No batch: one that no step hands out is missed."""
        self._last = None

    def left(self, index: int) -> Checked:
        """Each sample of the last batch, as it was written."""
        if self._last is None:
            return Checked(1, 1, "no batch came")
        wrong = self._files.wrong(*self._last)
        return Checked(len(wrong), len(self._last[0]), wrong[0] if wrong else "")

    def kept(self, index: int) -> None:
        """Nothing: samples are made anew from their numbers."""

    def equals(self, index: int, kept: object) -> bool:
        return self.left(index).wrong == 0

    def check(self) -> Checked:
        """One epoch: every sample once, and as it was written."""
        wrong, first = wrong_samples(self._files, self._on_host(self._loader(range(len(self._files)))))
        return Checked(wrong, len(self._files), first)

    def observed(self) -> Mapping[str, Observed]:
        """The wait for a batch, the model's step, and the wait's share of both; how long an epoch takes to begin.

        Waits are of the later half of the steps, which leaves warming up aside. `first_batch` is the time from asking
        for a first epoch to its first batch, `next_epoch` the same for the second.
        """
        told = list(self._told)[len(self._told) // 2 :]
        first, later = self._epoch_begins()
        return {
            "wait": Observed("s", [wait for wait, _ in told]),
            "model": Observed("s", [step for _, step in told]),
            "starved": Observed("1", [wait / (wait + step) for wait, step in told]),
            "first_batch": Observed("s", [first]),
            "next_epoch": Observed("s", [later]),
        }

    def close(self) -> None:
        # A DataLoader's iterator ends its workers when nothing refers to it any longer.
        self._batches = None
        self._held.close()

    def _iterate(self) -> tuple[float, float]:
        """Seconds of waiting for a batch and having it where the model is, and of the model's step."""
        assert self._batches is not None
        begin = time.perf_counter()
        numbers, samples = next(self._batches)
        self._last = numbers, self._moved(samples) if self._where.is_gpu else samples
        arrived = time.perf_counter()
        self._model.step()
        return arrived - begin, time.perf_counter() - arrived

    def _loader(self, order: Any) -> Any:
        p = self._parameters
        several: dict[str, Any] = {"prefetch_factor": p.prefetch, "persistent_workers": p.persistent}
        several |= {"multiprocessing_context": p.start}
        return self._where.torch.utils.data.DataLoader(
            self._files,
            batch_size=p.batch,
            sampler=order,
            num_workers=p.loaders,
            pin_memory=p.pinned,
            **(several if p.loaders else {}),
        )

    def _on_host(self, batches: Any) -> Iterator[Any]:
        """Batches as they come back from where the model is."""
        return ((numbers, self._moved(samples).cpu()) for numbers, samples in batches)

    def _moved(self, samples: Any) -> Any:
        return samples.to(self._where.device, non_blocking=self._parameters.pinned)

    def _epoch_begins(self) -> tuple[float, float]:
        """Seconds to the first batch of a loader's first epoch, and of its second, with nothing prefetched."""
        self._batches = None
        loader = self._loader(range(len(self._files)))
        seconds = []
        for _ in range(2):
            begin = time.perf_counter()
            batches = iter(loader)
            next(batches)
            seconds.append(time.perf_counter() - begin)
            deque(batches, maxlen=0)
        return seconds[0], seconds[1]


class Model:
    """A step of given length. On a host without a GPU a "device" is one that sleeps: it leaves the cores to loaders."""

    def __init__(self, where: TorchDevice, kind: str, seconds: float) -> None:
        self._where, self._seconds = where, seconds
        self._sleeps = kind == "device" and not where.is_gpu
        at = where.device if kind == "device" else "cpu"
        edge = PRODUCT["cuda" if kind == "device" and where.is_gpu else "cpu"]
        self._operands = tuple(where.torch.ones(edge, edge, device=at) for _ in range(3))
        self.products = 0 if self._sleeps else self._calibrated(seconds)

    def step(self) -> None:
        """Do it, and wait until it is done."""
        if self._sleeps:
            time.sleep(self._seconds)
        else:
            self._multiply(self.products)

    def _multiply(self, times: int) -> None:
        out, left, right = self._operands
        for _ in range(times):
            self._where.torch.mm(left, right, out=out)
        self._where.synchronize()

    def _calibrated(self, seconds: float) -> int:
        """How many products take that long where nothing else runs."""
        tried = 16
        self._multiply(tried)
        spent = []
        for _ in range(9):
            begin = time.perf_counter()
            self._multiply(tried)
            spent.append((time.perf_counter() - begin) / tried)
        return round(seconds / median(spent))
