"""The axes of a sweep as data: one table a probe, of tuples by profile, each of which a person may replace by name.

A table is a frozen dataclass, as in probes/backward.py: values by profile are an axis's default, and what it can hold
stands in its type, where the parameter of that name does not say it. `-a tile=64x64x256 -a workers=1,2` replaces two
axes and leaves the others as the profile has them; where several probes run, `-a baseline.workers=1` speaks to one.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from pyperf_suite.errors import UserError, offer
from pyperf_suite.hardware import cpu
from pyperf_suite.hardware.devices import Device, gpus
from pyperf_suite.ranks.launch import ranks_here

Axes = TypeVar("Axes")
Numbers = TypeVar("Numbers", bound="Dimensions")

# nccl-tests means powers of 1024 by K, M and G; units of 1000 would only be mistaken for them.
BYTES = {"": 1, "B": 1, "K": 2**10, "KIB": 2**10, "M": 2**20, "MIB": 2**20, "G": 2**30, "GIB": 2**30}
DEFAULT_FACTOR = 2
Values = tuple[Any, ...] | Callable[[Device], tuple[Any, ...]]
_LADDER = ("quick", "standard", "full")


@dataclass(frozen=True)
class ByProfile:
    """Values of an axis: a profile without its own has those before it, a GPU a CPU's, a command's own one quick's."""

    quick: Values
    standard: Values | None = None
    full: Values | None = None
    cuda: ByProfile | Values | None = None

    def of(self, profile: str, device: Device) -> tuple[Any, ...]:
        if device.kind == "cuda" and self.cuda is not None:
            own = self.cuda if isinstance(self.cuda, ByProfile) else ByProfile(self.cuda)
            return replace(own, cuda=None).of(profile, device)
        least = _LADDER.index(profile) if profile in _LADDER else 0
        own_values = [getattr(self, each) for each in _LADDER[: least + 1]]
        values = next(each for each in reversed(own_values) if each is not None)
        return tuple(values(device)) if callable(values) else values


by: Any = ByProfile  # as the default of a field, whose type is that of the values


class AxisTable:
    """The base of a probe's axes. `of` gives a profile's values; made by hand, what is left out is quick on a CPU."""

    @classmethod
    def of(cls: type[Axes], profile: str, device: Device) -> Axes:
        """The values of that profile on that device."""
        defaults = ((each.name, each.default) for each in dataclasses.fields(cls))  # type: ignore[arg-type]
        return cls(**{name: value.of(profile, device) for name, value in defaults if isinstance(value, ByProfile)})

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, ByProfile):
                object.__setattr__(self, name, value.of("quick", Device("cpu")))


def all_cores(_device: Device) -> tuple[int, ...]:
    """As many workers as there are cores."""
    return (cpu.detect().usable_cores,)


def one_and_all_cores(_device: Device) -> tuple[int, ...]:
    """One worker, and as many as there are cores."""
    return tuple(dict.fromkeys((1, cpu.detect().usable_cores)))


def multiprocessors(device: Device) -> tuple[int, ...]:
    """As many workers as a GPU has multiprocessors."""
    return (gpus()[device.index].multiprocessors,)


def ranks_of(*usual: int) -> Callable[[Device], tuple[int, ...]]:
    """Return a device's axis of ranks: `usual`, or as many as a launcher started."""
    return lambda _device: ranks_here(usual)


def a_rank_a_gpu(_device: Device) -> tuple[int, ...]:
    """As many ranks as there are GPUs, or as a launcher started."""
    return ranks_here((len(gpus()),))


def parse_overrides(texts: Iterable[str]) -> dict[str, str]:
    """`["workers=1,2"]` as `{"workers": "1,2"}`. Raises UserError for a text without `=`."""
    overrides = {}
    for text in texts:
        name, equals, values = text.partition("=")
        if not equals or not values:
            raise UserError(f"{text!r} is not an axis: write NAME=VALUE[,VALUE...], as in workers=1,2.")
        overrides[name.strip()] = values
    return overrides


def overrides_for(probe_name: str, overrides: Mapping[str, str]) -> dict[str, str]:
    """The overrides that speak to a probe: those without a probe's name, and those with its own."""
    chosen = {}
    for name, values in overrides.items():
        probe, dot, axis = name.rpartition(".")
        if not dot or probe == probe_name:
            chosen[axis] = values
    return chosen


def replace_axes(axes: Axes, overrides: Mapping[str, str]) -> Axes:
    """The axes with some replaced. Raises UserError for an axis there is not, or a value that it cannot hold."""
    found = replace(axes, **read_axes(type(axes), overrides))  # type: ignore[type-var]
    check_axes(found)
    return found


def read_axes(kind: type[Any], texts: Mapping[str, str]) -> dict[str, tuple[Any, ...]]:
    """The values of some axes of that class. Raises UserError for an axis there is not, or a value of another type."""
    hints = typing.get_type_hints(kind)
    for name in texts:
        if name not in hints:
            raise UserError(f"There is no axis {name[:80]!r} here: {offer(name, hints)}")
    elements = {name: typing.get_args(hints[name])[0] for name in texts}
    return {name: tuple(_parse(name, elements[name], value) for value in texts[name].split(",")) for name in texts}


def check_axes(axes: Any) -> None:
    """Raise UserError for the first value that the type of its axis does not allow."""
    for name, hint in typing.get_type_hints(type(axes), include_extras=True).items():
        for limit in getattr(hint, "__metadata__", ()):
            for value in getattr(axes, name):
                limit.check(name, value)


def parsed(kind: Any, text: str) -> tuple[Any, ...]:
    """Values of an axis as a person writes them, with blanks between: `parsed(Shape, "64x64x64 128x64x32")`."""
    return tuple(map(kind.parse, text.split()))


def crossed(axes: Any, *names: str) -> Iterator[dict[str, Any]]:
    """Every combination of the values of these axes, or of all, by the names of the axes."""
    names = names or tuple(vars(axes))
    for values in itertools.product(*(getattr(axes, name) for name in names)):
        yield dict(zip(names, values, strict=True))


def _parse(name: str, element: Any, text: str) -> Any:
    if hasattr(element, "parse"):
        return element.parse(text)
    try:
        return element(text.strip())
    except ValueError:
        raise UserError(f"{name}={text} was requested, but {name} takes {element.__name__} values.") from None


@dataclass(frozen=True)
class Flag:
    """A yes or no as an axis is written."""

    value: bool

    def __str__(self) -> str:
        return str(self.value).lower()

    @classmethod
    def parse(cls, text: str) -> Flag:
        """Read true or false. Raises UserError for anything else."""
        word = text.strip().lower()
        if word not in ("true", "false"):
            raise UserError(f"{text!r} was given where it is yes or no: write true or false.")
        return cls(word == "true")


NO, YES = Flag(False), Flag(True)


@dataclass(frozen=True)
class Dimensions:
    """The whole numbers of a frozen dataclass as an axis is written: `4x16x32`. `form` says how, with an example."""

    form: ClassVar[str]

    def __str__(self) -> str:
        return "x".join(str(value) for value in vars(self).values())

    @classmethod
    def parse(cls: type[Numbers], text: str) -> Numbers:
        """The inverse of `str`. Raises UserError for anything else."""
        parts = [part.strip() for part in text.split("x")]
        if len(parts) != len(dataclasses.fields(cls)) or not all(re.fullmatch("[0-9]{1,12}", part) for part in parts):
            raise UserError(f"{text[:80]!r} is not {cls.form}.")
        return cls(*map(int, parts))


@dataclass(frozen=True)
class Shape(Dimensions):
    """M x N x K of one product."""

    form = "a shape: write MxNxK, as in 512x4096x1024"
    m: int
    n: int
    k: int


@dataclass(frozen=True)
class Sizes:
    """Bytes from `smallest` to `largest`, each `factor` times the one before: nccl-tests' -b, -e and -f."""

    smallest: int
    largest: int
    factor: int = DEFAULT_FACTOR

    def ladder(self) -> tuple[int, ...]:
        """Every size in bytes, ascending; the largest is among them where the factor leads to it."""
        sizes = [self.smallest]
        while sizes[-1] * self.factor <= self.largest:
            sizes.append(sizes[-1] * self.factor)
        return tuple(sizes)

    def __str__(self) -> str:
        if self.smallest == self.largest:
            return _written(self.smallest)
        return f"{_written(self.smallest)}..{_written(self.largest)}:{self.factor}"

    @classmethod
    def parse(cls, text: str) -> Sizes:
        """The inverse of `str`. Raises UserError for anything else, and for a ladder that leads nowhere."""
        match = re.fullmatch(r"\s*([^.:]+)(?:\.\.([^.:]+)(?::(\d{1,9}))?)?\s*", text)
        if match is None:
            raise UserError(f"{text!r} is not a size: write one as in 64KiB, or a ladder as in 1KiB..1GiB:4.")
        smallest = _bytes(match[1])
        sizes = cls(smallest, _bytes(match[2]) if match[2] else smallest, int(match[3] or DEFAULT_FACTOR))
        if sizes.factor < 2 or sizes.largest < sizes.smallest:
            raise UserError(
                f"The sizes {text!r} do not grow: write the smaller one first and a factor of at least 2, as in "
                "1KiB..1GiB:4."
            )
        return sizes


def size_name(size_bytes: int) -> str:
    """`64 MiB`: an exact size as a name, as of a series or a tick; what is measured is a quantity."""
    written = _written(size_bytes)
    return f"{written[:-3]} {written[-3:]}" if written.endswith("iB") else f"{written} B"


def _written(size_bytes: int) -> str:
    """The shortest exact spelling."""
    for unit in ("GiB", "MiB", "KiB"):
        if size_bytes % BYTES[unit.upper()] == 0:
            return f"{size_bytes // BYTES[unit.upper()]}{unit}"
    return str(size_bytes)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})\s*([a-zA-Z]{0,3})", text.strip())
    if match is None or match[2].upper() not in BYTES or not int(match[1]):
        raise UserError(f"{text.strip()!r} is not a size: write bytes, or KiB, MiB or GiB, as in 64KiB.")
    return int(match[1]) * BYTES[match[2].upper()]


def sizes(*texts: str) -> tuple[Sizes, ...]:
    """Each as a person writes it: `sizes("64KiB", "1MiB..1GiB:4")`."""
    return tuple(map(Sizes.parse, texts))


def size_ticks(sizes: Iterable[int]) -> tuple[tuple[float, str], ...]:
    """Places on an axis of sizes, with their names."""
    return tuple((float(size), size_name(size)) for size in sizes)


def every_size(ladders: Iterable[Sizes]) -> list[int]:
    """The sizes of all ladders in bytes, each once, ascending."""
    return sorted({size_bytes for each in ladders for size_bytes in each.ladder()})
