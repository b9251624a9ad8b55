"""A training loop's input: batches that torch's DataLoader decodes, each followed by a model step of given length.

Files hold text to tokenise. Every sample is made anew from its number, so that what a loader hands out can be compared
without having been kept.
"""

from __future__ import annotations

import itertools
import re
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import OneOf, Unsupported, UserError, Within
from pyperf_suite.hardware import cpu
from pyperf_suite.workloads import scratch
from pyperf_suite.workloads.backends import TorchDevice
from pyperf_suite.workloads.workload import (
    ByFunction,
    Checked,
    ExecutionContext,
    Kernel,
    Observed,
    Prepared,
    Workload,
    by_name,
)

# Words of the text, and so tokens it can be cut into; and how many a file has.
VOCABULARY, LENGTH = 8192, 1024
WORD = re.compile(r"[^\W_]+|[^\w\s]")

# Hardware that a step of the model keeps busy: a device of its own, on which the host waits; or a core of the host.
MODELS = ("device", "host")

# Files are written first, and a case has minutes for all it does.
MOST_LOADERS, MOST_FILES, MOST_ITERATIONS, MOST_STEP_US = 256, 1 << 14, 1024, 10_000_000

MOST_REPORTED = 4096  # the last ones are reported; a standard trial has far fewer

# Edge of the float32 product that a model's step is made of: well below a millisecond on a core, and on a GPU.
PRODUCT = {"cpu": 128, "cuda": 2048}


class TextFiles:
    """A file of words a sample, of which a tokeniser of a fixed vocabulary makes [LENGTH] int64 tokens.

    No handle is kept: a DataLoader's worker that is started rather than forked gets a copy.
    """

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self._folder, self._count, self._seed = folder, count, seed
        self._number = {_word(number): number for number in range(VOCABULARY)}
        for index in range(count):
            self.path(index).write_text(" ".join(map(_word, self.expected(index).tolist())))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, NDArray[np.int64]]:
        words = WORD.findall(self.path(index).read_text().lower())
        return index, np.array([self._number[word] for word in words], dtype=np.int64)

    def path(self, index: int) -> Path:
        return self._folder / f"{index:06d}.txt"

    def wrong(self, numbers: Any, samples: Any) -> list[str]:
        pairs = zip(numbers.tolist(), samples.cpu().numpy(), strict=True)
        different = (number for number, each in pairs if not np.array_equal(self.expected(number), each))
        return [f"sample {number} is not what was written" for number in different]

    def checked(self, batches: Any) -> Checked:
        """One epoch: each sample once and as written; `batches` yields (numbers, samples) in host memory."""
        seen = np.zeros(len(self), dtype=int)
        wrong: list[str] = []
        for numbers, samples in batches:
            np.add.at(seen, numbers.numpy(), 1)
            wrong += self.wrong(numbers, samples)
        wrong += [f"sample {number} came {seen[number]} times" for number in np.flatnonzero(seen != 1).tolist()]
        return Checked(len(wrong), len(self), wrong[0] if wrong else "")

    def expected(self, index: int) -> NDArray[np.int64]:
        """Return the tokens that the sample must decode to."""
        return np.random.default_rng((self._seed, index)).integers(0, VOCABULARY, LENGTH)


def _word(number: int) -> str:
    """Letters for a number of the vocabulary, as long as words are on average: `zabab` and so on."""
    return "z" + "".join(chr(ord("a") + (number >> shift) % 16) for shift in (0, 4, 8, 12))


@dataclass(frozen=True)
class InputPipelineParameters:
    """A loader's settings, the files it reads, and the model it feeds.

    `loaders` is DataLoader's num_workers, 0 for loading in the training process; `prefetch` its prefetch_factor;
    `persistent` keeps its workers from epoch to epoch; `pinned` has batches copied from pinned memory while the host
    goes on. `files` is how many there are. The model takes `step_us` microseconds of a device, or of a core of the
    host. A sample times `iterations` at once, as several loaders hand out their batches in bursts.
    """

    loaders: Annotated[int, Within(0, MOST_LOADERS)] = 0
    prefetch: Annotated[int, Within(1, 1024)] = 2
    persistent: bool = True
    pinned: bool = False
    model: Annotated[str, OneOf(MODELS)] = "device"
    step_us: Annotated[int, Within(0, MOST_STEP_US)] = 5000
    batch: Annotated[int, Within(1, MOST_FILES)] = 8
    files: Annotated[int, Within(1, MOST_FILES)] = 32
    iterations: Annotated[int, Within(1, MOST_ITERATIONS)] = 4

    def validate(self) -> None:
        if self.files < self.batch:
            raise UserError(f"{self.files} files do not fill a batch of {self.batch}: ask for more files.")


class LoaderSteps(Prepared):
    """A loop over an epoch without end by torch's DataLoader; where one begins, workers start (see `observed`).

    The host's clock is right on a GPU too, as an iteration ends when the device is done. While timed, a step's last
    batch is checked, before and after a whole epoch.
    """

    sees_more = True

    def __init__(self, parameters: InputPipelineParameters, place: ExecutionContext) -> None:
        if parameters.pinned and place.device.kind == "cpu":
            raise Unsupported("Pinned memory is for copies to a GPU, and this case runs on the CPU.")
        self._parameters, self._where = parameters, TorchDevice(place.device, queueing="open")
        self._resources = ExitStack()
        made = tempfile.TemporaryDirectory(prefix="pyperf_input_pipeline_", dir=scratch.folder())
        folder = self._resources.enter_context(made)
        try:
            self._files = TextFiles(Path(folder), parameters.files, place.seed)
            self._model = Model(self._where, parameters.model, parameters.step_us * 1e-6)
        except BaseException:
            self.close()
            raise
        self._batches: Iterator[Any] | None = None
        self._last: tuple[Any, Any] | None = None
        self._reported: deque[tuple[float, float]] = deque(maxlen=MOST_REPORTED)
        details = {
            "bytes_a_file": sum(each.stat().st_size for each in Path(folder).iterdir()) / parameters.files,
            "products_a_step": self._model.products,
            "cores": cpu.detect().usable_cores,
        }
        self.kernel = Kernel("DataLoader", "text", {**details, **self._where.details()})

    def launch(self, index: int) -> None:
        if self._batches is None:
            self._batches = iter(self._loader(itertools.cycle(range(len(self._files)))))
            # Batches that were prefetched while nobody took them are no rate of the loader's.
            for _ in range(self._parameters.loaders * self._parameters.prefetch):
                self._iterate()
        seconds = [self._iterate() for _ in range(self._parameters.iterations)]
        waited, modelled = (sum(column) / len(seconds) for column in zip(*seconds, strict=True))
        self._reported.append((waited, modelled))

    def untimed(self, index: int) -> None:
        self.launch(index)
        self._reported.pop()

    def poison(self, index: int | None = None) -> None:
        self._last = None

    def verify_last(self, index: int) -> Checked:
        if self._last is None:
            return Checked(1, 1, "no batch came")
        wrong = self._files.wrong(*self._last)
        return Checked(len(wrong), len(self._last[0]), wrong[0] if wrong else "")

    def check(self) -> Checked:
        batches = self._loader(range(len(self._files)))
        return self._files.checked((numbers, self._moved(samples).cpu()) for numbers, samples in batches)

    def observed(self) -> Mapping[str, Observed]:
        """The wait for a batch, the model's step, and the wait's share of both; how long an epoch takes to begin.

        Waits are of the later half of the steps, which leaves warming up aside. `first_batch` is the time from asking
        for a first epoch to its first batch, `next_epoch` the same for the second.
        """
        reported = list(self._reported)[len(self._reported) // 2 :]
        # Seconds to the first batch of a loader's first epoch, and of its second, with nothing prefetched.
        self._batches = None
        loader = self._loader(range(len(self._files)))
        begins_s = []
        for _ in range(2):
            begin = time.perf_counter()
            batches = iter(loader)
            next(batches)
            begins_s.append(time.perf_counter() - begin)
            deque(batches, maxlen=0)
        return {
            "wait": Observed("s", [wait for wait, _ in reported]),
            "model": Observed("s", [step for _, step in reported]),
            "starved": Observed("1", [wait / (wait + step) for wait, step in reported]),
            "first_batch": Observed("s", [begins_s[0]]),
            "next_epoch": Observed("s", [begins_s[1]]),
        }

    def close(self) -> None:
        # A DataLoader's iterator ends its workers when nothing refers to it any longer.
        self._batches = None
        self._resources.close()

    def _iterate(self) -> tuple[float, float]:
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
        several |= {"multiprocessing_context": "fork"}
        return self._where.torch.utils.data.DataLoader(
            self._files,
            batch_size=p.batch,
            sampler=order,
            num_workers=p.loaders,
            pin_memory=p.pinned,
            **(several if p.loaders else {}),
        )

    def _moved(self, samples: Any) -> Any:
        return samples.to(self._where.device, non_blocking=self._parameters.pinned)


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
        """How many products take that long."""
        tried = 16
        self._multiply(tried)
        spent_s = []
        for _ in range(9):
            begin = time.perf_counter()
            self._multiply(tried)
            spent_s.append((time.perf_counter() - begin) / tried)
        return round(seconds / median(spent_s))


class InputPipeline(Workload[InputPipelineParameters]):
    """Iterations of a training loop over files."""

    name = "input_pipeline"
    takes_turns = False  # its loaders go on while others have a turn
    parameters_type = InputPipelineParameters
    implementations = by_name(ByFunction("torch", LoaderSteps))
