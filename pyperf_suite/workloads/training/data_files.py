"""Files of samples that a loader of data decodes, and what each must decode to: text to tokenise, pictures as JPEG.

Every sample is made anew from its number, so that what a loader hands out can be compared without having been kept.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyperf_suite.errors import Unsupported

Sample = NDArray[np.generic]

# Words of the text, and so tokens it can be cut into.
VOCABULARY = 8192
WORD = re.compile(r"[^\W_]+|[^\w\s]")

PICTURE = 224  # edge in pixels, as models of pictures are fed
BLOCK = 32  # edge of the squares that a picture is made of
GRAIN = 24  # levels by which pixels of a square differ from its colour: what makes a file as long as a photograph's
# Levels of 255 a pixel, in the mean: JPEG of quality 90 loses about 4, and another sample's picture differs by 80.
MOST_LOST = 8.0


class DataFiles(ABC):
    """One file a sample in a folder; index it for the decoded sample, as torch's DataLoader does in its workers.

    Instances hold no handles: a worker that is started rather than forked gets a copy.
    """

    suffix: str

    def __init__(self, folder: Path, count: int, seed: int) -> None:
        """Write the files. Raises Unsupported where the decoder is not installed."""
        self._folder, self._count, self._seed = folder, count, seed
        for index in range(count):
            self._write(self.path(index), self.expected(index))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, Sample]:
        """The sample's number and what its file decodes to."""
        return index, self._read(self.path(index))

    def path(self, index: int) -> Path:
        """The sample's file."""
        return self._folder / f"{index:06d}{self.suffix}"

    @property
    def bytes_a_file(self) -> float:
        """The mean over the files."""
        return sum(self.path(index).stat().st_size for index in range(self._count)) / self._count

    def wrong(self, numbers: Any, samples: Any) -> list[str]:
        """Which samples of a batch of tensors are not as written, in words."""
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
        """`length` tokens a file."""
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
        if importlib.util.find_spec("PIL") is None:
            raise Unsupported("Pillow, which decodes JPEG, is not installed.")
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
