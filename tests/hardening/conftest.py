"""Fixtures of hardening: a hundred spoiled forms of a good text or JSON value, and a bound on memory.

Hypothesis draws one seed for a hundred inputs: drawing each by itself would take longer than reading it. The profile
`thorough` gives every reader 100,000 inputs (`make fuzz`).
"""

import copy
import json
import random
import resource
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import note

# Whatever a reader may be handed in place of what it expects, as text.
PIECES = (
    *("", "0", "-1", "1", "-", ".", "..", "/", "%", ":", "=", ",", "@", "x", "X", "(", ")", "[", "]", "{", "}", '"'),
    *("NaN", "nan", "inf", "-inf", "Infinity", "1e999", "1e-999", "0x10", "1_0", "true", "null", "None", "N/A"),
    *("\n", "\r", "\t", " ", "\0", "\x1b[31m", "\u2028", "\ufeff", "\ud800", "²", "٣", "é", "\U0001f600"),
    *("9" * 20, "9" * 400, "9" * 5000, "[" * 2000, '{"a":' * 2000, "a" * 10_000, "-0", "+1", "1.5", "2" * 15),
)

# The same as values of JSON; those that json writes and strict readers refuse are among them.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e308, 1e-320),
    *(float("inf"), float("-inf"), float("nan"), "", "x", "0", "-1", "1e999", "²", "\0", "\x1b[31m", "\ud800"),
    *("[/x]", "a" * 2000, "2026-01-01", "99999-01-01", "../../x", [], {}, [[]], [{}], {"a": 1}, [1, "x", None]),
    *([1e-3] * 50, {"time": {}}, {"": {"": {}}}, [[0, "why"]], {"median": 1}),
)
DEEP: Any = None
for _ in range(200):
    DEEP = [DEEP]
VALUES += (DEEP, {"deep": DEEP})

INPUTS = 100
MOST_BYTES_MORE = 2 << 30


@pytest.fixture(scope="session")
def each_spoiled() -> Callable[..., None]:
    """each_spoiled(seed, good, read, refusals): read INPUTS spoiled forms of what is good, texts or other values.

    An exception that is not one of the refusals comes through, with the input added to it.
    """

    def each(seed: int, good: Sequence[Any], read: Callable[[Any], Any], refusals: tuple[type[Exception], ...]) -> None:
        draw = random.Random(seed)
        for _ in range(INPUTS):
            one = good[draw.randrange(len(good))]
            spoil = {str: _spoiled_text, bytes: _spoiled_bytes}.get(type(one), _spoiled_json)
            spoiled = spoil(one, draw)
            try:
                read(spoiled)
            except refusals:
                continue
            except BaseException:
                note(f"The input was {str(spoiled)[:3000]!r}")
                raise

    return each


@pytest.fixture(autouse=True, scope="module")
def bounded_memory() -> Iterator[None]:
    """An input that makes a reader take gigabytes ends as a MemoryError, which fails its test."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES_MORE, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def _spoiled_text(text: str, draw: random.Random) -> str:
    """Cut, doubled, overwritten or torn up, in a few places."""
    for _ in range(draw.choice((1, 1, 2, 3, 6))):
        kind, piece, length = draw.randrange(8), draw.choice(PIECES), draw.randrange(24)
        place = draw.randrange(len(text) + 1)
        before, after = text[:place], text[place:]
        if kind <= 2:
            text = before + piece + after
        elif kind <= 4:
            text = before + piece + after[length:]
        elif kind == 5:
            text = before + after[length:]
        elif kind == 6:
            text = before + after[:length] * 3 + after[length:]
        else:
            text = draw.choice((before, after))
    return text


def _spoiled_bytes(content: bytes, draw: random.Random) -> bytes:
    """Bytes of any value among them, so that a text is no UTF-8 and a binary file is another; or spoiled as a text."""
    if draw.randrange(3) == 0:
        return _spoiled_text(content.decode("latin-1"), draw).encode("utf-8", "surrogatepass")
    spoiled = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 8))):
        place = draw.randrange(len(spoiled) + 1)
        kind = draw.randrange(5)
        if kind <= 1:
            spoiled[place : place + 1] = draw.randbytes(1)
        elif kind == 2:
            spoiled[place:place] = draw.randbytes(draw.randrange(16))
        elif kind == 3:
            del spoiled[place : place + draw.randrange(40)]
        else:
            spoiled[place:] = spoiled[place : place + 9] + spoiled[place:] if draw.randrange(4) else b""
    return bytes(spoiled)


def _spoiled_json(value: Any, draw: random.Random) -> Any:
    """A copy in which a few values are others, are gone, are doubled, or bear another name."""
    holder = [json.loads(json.dumps(value))]
    for _ in range(draw.choice((1, 1, 2, 4))):
        kind, piece = draw.randrange(8), draw.choice(VALUES)
        places = list(_places(holder))
        inside, key = draw.choice(places)
        if kind <= 4:
            inside[key] = copy.deepcopy(piece)
        elif kind == 5 and inside is not holder:
            del inside[key]
        elif kind == 6 and isinstance(inside, dict):
            inside[str(piece)[:80]] = inside.pop(key)
        else:
            other, name = draw.choice(places)
            inside[key] = copy.deepcopy(other[name])
    return holder[0]


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key or index) of a JSON value, outermost first; of long lists the first few."""
    waiting = [value]
    while waiting:
        inside = waiting.pop(0)
        keys = list(inside) if isinstance(inside, dict) else range(min(len(inside), 6))
        for key in keys:
            yield inside, key
            if isinstance(inside[key], dict | list):
                waiting.append(inside[key])
