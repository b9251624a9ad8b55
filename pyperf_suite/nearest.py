"""What to write instead of a name that is not there: the nearest ones, or all."""

from __future__ import annotations

from collections.abc import Iterable

NAMES_OFFERED = 3


def nearest(name: str, names: Iterable[str]) -> list[str]:
    """The names most like the one asked for, at most `NAMES_OFFERED`, none where none is like it; case is no matter."""
    import difflib

    by_key = {each.lower(): each for each in names}
    found = difflib.get_close_matches(name[:80].lower(), list(by_key), n=NAMES_OFFERED)
    return [by_key[key] for key in found]


def offer(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that is not there.

    >>> offer("tile_wav", ["tile_wave", "baseline"])
    'did you mean tile_wave?'
    >>> offer("nothing", ["tile_wave", "baseline"])
    'choose from tile_wave, baseline.'
    """
    there = list(names)
    near = nearest(name, there)
    return f"did you mean {' or '.join(near)}?" if near else f"choose from {', '.join(there)}."
