"""A training loop's input: batches that torch's DataLoader decodes, each followed by a model step of given length.

Files hold text to tokenise or pictures as JPEG. Every sample is made anew from its number, so that what a loader hands
out can be compared without having been kept.
"""

from __future__ import annotations

import itertools
import multiprocessing
import re
import tempfile
import time
from abc import ABC, abstractmethod
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
from pyperf_suite.workloads.backends import TorchDevice, require_installed
from pyperf_suite.workloads.training.shapes import SHAPES, sized
from pyperf_suite.workloads.training.training_step import TorchSteps, TrainingStepParameters
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

Sample = NDArray[np.generic]

# Words of the text, and so tokens it can be cut into.
VOCABULARY = 8192
WORD = re.compile(r"[^\W_]+|[^\w\s]")

PICTURE = 224  # edge in pixels, as models of pictures are fed
BLOCK = 32  # edge of the squares that a picture is made of
GRAIN = 24  # levels by which pixels of a square differ from its colour: what makes a file as long as a photograph's
# Levels of 255 a pixel, in the mean: JPEG of quality 90 loses about 4, and another sample's picture differs by 80.
MOST_LOST = 8.0

# What a step of the model keeps busy: a device of its own, on which the host waits; or a core of the host.
MODELS = ("device", "host")

# How Python starts a process; which of them a system has is its own affair.
STARTS = ("fork", "forkserver", "spawn")

# Files are written first, and a case has minutes for all it does.
MOST_LOADERS, MOST_FILES, MOST_ITERATIONS, MOST_STEP_US = 256, 1 << 14, 1024, 10_000_000

# The last ones are reported; a standard trial has far fewer.
MOST_REPORTED = 4096

# Edge of the float32 product that a model's step is made of: well below a millisecond on a core, and on a GPU.
PRODUCT = {"cpu": 128, "cuda": 2048}


class DataFiles(ABC):
    """One file a sample in a folder; index it for the decoded sample, as torch's DataLoader does in its workers.

    Instances hold no handles: a worker that is started rather than forked gets a copy.
    """

    suffix: str

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        self._folder, self._count, self._seed = folder, count, seed
        for index in range(count):
            self._write(self.path(index), self.expected(index))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, Sample]:
        return index, self._read(self.path(index))

    def path(self, index: int) -> Path:
        return self._folder / f"{index:06d}{self.suffix}"

    @property
    def bytes_a_file(self) -> float:
        return sum(self.path(index).stat().st_size for index in range(self._count)) / self._count

    def wrong(self, numbers: Any, samples: Any) -> list[str]:
        pairs = zip(numbers.tolist(), samples.cpu().numpy(), strict=True)
        return [f"sample {number} is not what was written" for number, each in pairs if not self.is_right(number, each)]

    @abstractmethod
    def expected(self, index: int) -> Sample:
        """What the sample must decode to."""

    def is_right(self, index: int, decoded: Sample) -> bool:
        """Whether it did."""
        return bool(np.array_equal(self.expected(index), decoded))

    @abstractmethod
    def _write(self, path: Path, sample: Sample) -> None: ...

    @abstractmethod
    def _read(self, path: Path) -> Sample: ...

    def _random(self, index: int) -> np.random.Generator:
        return np.random.default_rng((self._seed, index))


class TextFiles(DataFiles):
    """Words by which a tokeniser of a fixed vocabulary finds their numbers: [length] int64 tokens a sample."""

    suffix = ".txt"

    def __init__(self, folder: Path, count: int, seed: int, length: int = 1024) -> None:
        self._length = length
        self._number = {_word(number): number for number in range(VOCABULARY)}
        super().__init__(folder, count, seed)

    def expected(self, index: int) -> Sample:
        return self._random(index).integers(0, VOCABULARY, self._length)

    def _write(self, path: Path, sample: Sample) -> None:
        path.write_text(" ".join(_word(number) for number in sample.tolist()))

    def _read(self, path: Path) -> Sample:
        words = WORD.findall(path.read_text().lower())
        return np.array([self._number[word] for word in words], dtype=np.int64)


class PictureFiles(DataFiles):
    """Squares of random colours, and grain: [PICTURE, PICTURE, 3] levels of 0 to 255 a sample."""

    suffix = ".jpg"

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        require_installed("PIL", "Pillow, which decodes JPEG,")
        super().__init__(folder, count, seed)

    def expected(self, index: int) -> Sample:
        random, squares = self._random(index), PICTURE // BLOCK
        colours = random.integers(GRAIN, 256 - GRAIN, (squares, squares, 3), dtype=np.int16)
        grain = random.integers(-GRAIN, GRAIN + 1, (PICTURE, PICTURE, 1), dtype=np.int16)
        return (colours.repeat(BLOCK, axis=0).repeat(BLOCK, axis=1) + grain).astype(np.uint8)

    def is_right(self, index: int, decoded: Sample) -> bool:
        expected = self.expected(index)
        if decoded.shape != expected.shape or decoded.dtype != expected.dtype:
            return False
        # What the format loses hides a single pixel: each must be as this process decodes the file itself.
        lost = np.abs(decoded.astype(np.int16) - expected.astype(np.int16)).mean()
        return bool(lost <= MOST_LOST) and np.array_equal(decoded, self._read(self.path(index)))

    def _write(self, path: Path, sample: Sample) -> None:
        from PIL import Image

        Image.fromarray(sample).save(path, quality=90)

    def _read(self, path: Path) -> Sample:
        from PIL import Image

        with Image.open(path) as picture:
            return np.array(picture.convert("RGB"))


KINDS: dict[str, type[DataFiles]] = {"text": TextFiles, "jpeg": PictureFiles}


def _word(number: int) -> str:
    """Letters for a number of the vocabulary, as long as words are on average: `zabab` and so on."""
    return "z" + "".join(chr(ord("a") + (number >> shift) % 16) for shift in (0, 4, 8, 12))


def wrong_samples(files: DataFiles, batches: Any) -> tuple[int, str]:
    """How many samples of one epoch are not as written, come twice or never, and the first of them in words.

    `batches` yields pairs of numbers and samples, of tensors that lie in host memory.
    """
    seen = np.zeros(len(files), dtype=int)
    wrong: list[str] = []
    for numbers, samples in batches:
        np.add.at(seen, numbers.numpy(), 1)
        wrong += files.wrong(numbers, samples)
    wrong += [f"sample {number} came {seen[number]} times" for number in np.flatnonzero(seen != 1).tolist()]
    return len(wrong), wrong[0] if wrong else ""


@dataclass(frozen=True)
class InputPipelineParameters:
    """A loader's settings, the files it reads, and the model it feeds.

    `loaders` is DataLoader's num_workers, 0 for loading in the training process; `prefetch` its prefetch_factor;
    `persistent` keeps its workers from epoch to epoch; `pinned` has batches copied from pinned memory while the host
    goes on. `start` is how workers are started. `data` is a kind of file, `files` how many there are. The model takes
    `step_us` microseconds of a device, or of a core of the host; or it is the guides' model of that `shape` in float32,
    on all cores of a host without a GPU, and texts are as long as its sequences. What is timed is `iterations` at once,
    as several loaders hand out their batches in bursts.
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
    shape: Annotated[str, OneOf(("", *SHAPES))] = ""

    def validate(self) -> None:
        if self.shape and self.data != "text":
            raise UserError(f"{self.shape} reads text, but data={self.data} was requested.")
        if self.files < self.batch:
            raise UserError(f"{self.files} files do not fill a batch of {self.batch}: ask for more files.")


def by_torch(parameters: InputPipelineParameters, place: ExecutionContext) -> Prepared:
    """torch.utils.data.DataLoader."""
    if parameters.start not in multiprocessing.get_all_start_methods():
        raise Unsupported(f"This system starts no process by {parameters.start}.")
    if parameters.pinned and place.device.kind == "cpu":
        raise Unsupported("Pinned memory is for copies to a GPU, and this case runs on the CPU.")
    workers = cpu.detect().usable_cores if parameters.shape else 1
    return LoaderSteps(parameters, place.seed, TorchDevice(place.device, workers, queueing="open"))


class InputPipeline(Workload[InputPipelineParameters]):
    """Iterations of a training loop over files."""

    name = "input_pipeline"
    takes_turns = False  # its loaders go on while others have a turn
    parameters_type = InputPipelineParameters
    implementations = by_name(ByFunction("torch", by_torch))


class LoaderSteps(Prepared):
    """A loop over an epoch without end: where one begins, workers start, which is reported separately (see `observed`).

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
            p = parameters
            length = {"length": SHAPES[p.shape].seq} if p.shape else {}
            self._files: DataFiles = KINDS[p.data](Path(folder), p.files, seed, **length)
            self._model = NamedModel(where, p, seed) if p.shape else Model(where, p.model, p.step_us * 1e-6)
        except BaseException:
            self.close()
            raise
        self._batches: Iterator[Any] | None = None
        self._last: tuple[Any, Any] | None = None
        self._reported: deque[tuple[float, float]] = deque(maxlen=MOST_REPORTED)
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
        """One epoch: every sample once, and as it was written."""
        batches = self._loader(range(len(self._files)))
        on_host = ((numbers, self._moved(samples).cpu()) for numbers, samples in batches)
        wrong, first = wrong_samples(self._files, on_host)
        return Checked(wrong, len(self._files), first)

    def observed(self) -> Mapping[str, Observed]:
        """The wait for a batch, the model's step, and the wait's share of both; how long an epoch takes to begin.

        Waits are of the later half of the steps, which leaves warming up aside. `first_batch` is the time from asking
        for a first epoch to its first batch, `next_epoch` the same for the second.
        """
        reported = list(self._reported)[len(self._reported) // 2 :]
        first, later = self._epoch_begins()
        return {
            "wait": Observed("s", [wait for wait, _ in reported]),
            "model": Observed("s", [step for _, step in reported]),
            "starved": Observed("1", [wait / (wait + step) for wait, step in reported]),
            "first_batch": Observed("s", [first]),
            "next_epoch": Observed("s", [later]),
        }

    def close(self) -> None:
        # A DataLoader's iterator ends its workers when nothing refers to it any longer.
        self._batches = None
        self._held.close()

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
        several |= {"multiprocessing_context": p.start}
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


class NamedModel:
    """Forward and backward of one of the guides' models, on tokens that are always the same."""

    products = 0

    def __init__(self, where: TorchDevice, parameters: InputPipelineParameters, seed: int) -> None:
        shape = sized(parameters.shape, SHAPES[parameters.shape].seq, parameters.batch)
        self._where, self._steps = where, TorchSteps(TrainingStepParameters(**vars(shape)), seed, where)

    def step(self) -> None:
        self._steps.launch(0)
        self._where.synchronize()


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
        tried = 16
        self._multiply(tried)
        spent = []
        for _ in range(9):
            begin = time.perf_counter()
            self._multiply(tried)
            spent.append((time.perf_counter() - begin) / tried)
        return round(seconds / median(spent))
