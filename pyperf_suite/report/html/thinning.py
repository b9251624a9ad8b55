"""Points that are too many to be drawn thinned by one rule, so that no extreme is lost."""

from __future__ import annotations

from collections.abc import Sequence

# Of one series of a panel.
MOST_POINTS = 600


def kept(y: Sequence[float], most: int = MOST_POINTS) -> list[int]:
    """Places of the values to draw: all, or of `most / 2` stretches of equal count the lowest and the highest each.

    >>> kept([5.0, 1.0, 9.0, 4.0, 4.0, 4.0], most=4)
    [1, 2, 3]
    """
    if len(y) <= most:
        return list(range(len(y)))
    stretches = most // 2
    places = []
    for number in range(stretches):
        stretch = range(number * len(y) // stretches, (number + 1) * len(y) // stretches)
        places += sorted({min(stretch, key=y.__getitem__), max(stretch, key=y.__getitem__)})
    return places


def rule(total: int, drawn: int) -> str:
    """The sentence that says what was left out; empty where nothing was."""
    if drawn == total:
        return ""
    return (
        f"Of {total} values {drawn} are drawn: of each stretch of equally many neighbours the lowest and the highest."
    )
