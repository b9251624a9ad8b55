"""What ranks do together before a case can be prepared: find what they need, and connect.

Nobody begins to connect before all have what it takes, so no rank waits for one that cannot come.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.ranks.group import Group, RanksMissing

Made = TypeVar("Made")


def agree(group: Group, doing: str, attempt: Callable[[], Made], deadline_s: float) -> Made:
    """What `attempt` makes on this rank alone, once it has on all. Raises Unsupported on all where it fails on any."""
    made: list[Made] = []
    trouble = ""
    try:
        made.append(attempt())
    except (Unsupported, UserError) as reason:
        trouble = str(reason)
    except Exception as error:  # the others wait to hear of it, whatever it is
        trouble = f"{type(error).__name__}: {error}"
    troubles = group.gather(doing, trouble, deadline_s)
    found = [(rank, told) for rank, told in enumerate(troubles) if told]
    if found:
        rank, first = found[0]
        raise Unsupported(first if len(set(troubles)) == 1 else f"Rank {rank}: {first}")
    return made[0]


def connect_together(group: Group, doing: str, connect: Callable[[], Made], deadline_s: float) -> Made:
    """What `connect` makes with all other ranks. Raises RanksMissing where it fails, which ends the group."""
    with group.within(doing, deadline_s):
        try:
            return connect()
        except RanksMissing:
            raise
        except Exception as error:
            raise group.broken(doing, error) from error
