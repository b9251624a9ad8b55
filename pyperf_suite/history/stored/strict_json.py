"""JSON from anybody: it is finite in depth, has every key once and no NaN, or is refused in one sentence."""

from __future__ import annotations

import json
from typing import Any

# Python refuses longer ones too, with advice for its programmer.
LONGEST_INTEGER = 4000


def loads(text: str | bytes) -> Any:
    """The JSON value in `text`.

    Raises ValueError, with a message for a person, for anything else: text that is not JSON, NaN or Infinity, a key
    twice in one object, nesting deeper than Python follows, an integer of thousands of digits. A number such as 1e999
    is JSON and becomes infinite: whoever uses a number asks whether it is finite.
    """
    try:
        return _DECODER.decode(text.decode("utf-8-sig") if isinstance(text, bytes) else text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except UnicodeDecodeError:
        raise ValueError("it is not text in UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON ({error.msg} at character {error.pos})") from None


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"it has the key {twice[:40]!r} twice in one object")
    return found


def _integer(text: str) -> int:
    if len(text) > LONGEST_INTEGER:
        raise ValueError(f"it holds an integer of {len(text)} digits")
    return int(text)


def _no_constant(name: str) -> float:
    raise ValueError(f"it holds {name}, which is no number of JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_once_each, parse_constant=_no_constant, parse_int=_integer)
