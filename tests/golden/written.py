"""Numbers and words out of text, and whether two texts say the same to the precision of the first."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

_SIGN = r"(?:(?<![^\s(\[,=:±])[+\-−])?"  # a hyphen after a letter or a digit is none: GPT-3, 20-25 %
_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?(?:[eE][+-]?\d+(?![\w]))?"
_NUMBER = re.compile(_SIGN + _DIGITS)
# Said in prose: digits that belong to a name (float32, sm_80, ZeRO-1) are none, those of a size (4x1024) are.
_NUMBER_IN_TEXT = re.compile(rf"(?:(?<![A-Za-z_.\d])(?<![A-Za-z]-)|(?<=\dx)){_SIGN}{_DIGITS}(?:\s?%)?")


class Written(NamedTuple):
    """A number as it stands in a text, said in prose with its sign of percent."""

    text: str

    @property
    def value(self) -> float:
        """The number, without its sign of percent and its thousands separators."""
        return float(self.text.rstrip("%").replace(",", "").replace("−", "-"))

    @property
    def half_a_unit(self) -> float:
        """Half a unit of its last digit."""
        mantissa, _, exponent = self.text.rstrip("%").lower().partition("e")
        return 0.5 * 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))

    def covers(self, value: float) -> bool:
        """True if another number would be written like this one, to as many digits."""
        return math.isclose(self.value, value, rel_tol=1e-12, abs_tol=self.half_a_unit * (1 + 1e-9))


def numbers_in(cell: str) -> list[Written]:
    """All digits of a cell: `1.25 [1.20, 1.31]`, `-39%`, `2.5 -> 3` and `4x1024x512` are sequences of numbers."""
    return [Written(found.group()) for found in _NUMBER.finditer(cell)]


def numbers_said(sentence: str) -> list[Written]:
    """The numbers of a sentence, in order.

    Single digits without a sign, a decimal or a percent count things (2 ranks, 1 of 3) and are left out: they could be
    said as words.
    """
    found = [Written(re.sub(r"\s", "", match.group())) for match in _NUMBER_IN_TEXT.finditer(sentence)]
    return [number for number in found if not re.fullmatch(r"\d", number.text)]


def words_in(cell: str) -> list[str]:
    """The words of a cell without case, punctuation, digits and signs of times."""
    plain = _NUMBER.sub(" ", cell).lower().replace("×", " ").replace("µ", "u").replace("μ", "u")
    return [word for word in re.findall(r"[^\W\d_]+", plain) if word != "x"]


def says_the_same(golden: str, cell: str) -> bool:
    """True if a cell has the golden numbers in their order, to the digits of golden, and its words.

    A cell with numbers may add words, as a unit.
    """
    wanted, numbers = numbers_in(golden), numbers_in(cell)
    if len(wanted) != len(numbers):
        return False
    if not all(one.covers(other.value) for one, other in zip(wanted, numbers, strict=True)):
        return False
    if not wanted:
        return words_in(golden) == words_in(cell)
    rest = iter(words_in(cell))
    return all(word in rest for word in words_in(golden))
