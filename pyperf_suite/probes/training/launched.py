"""What a launcher means for probes of ranks: its ranks are those there are, and no others can be asked for."""

from __future__ import annotations

from collections.abc import Iterable

from pyperf_suite.errors import UserError
from pyperf_suite.ranks.environment import rank_environment


def ranks_here(usual: tuple[int, ...]) -> tuple[int, ...]:
    """The number that a launcher started, or else those that a profile has."""
    launched = rank_environment()
    return (launched.count,) if launched.launched else usual


def require_launched(asked: Iterable[int]) -> None:
    """Raise UserError for another number of ranks than a launcher started."""
    launched = rank_environment()
    others = [ranks for ranks in asked if launched.launched and ranks != launched.count]
    if others:
        raise UserError(
            f"ranks={others[0]} was asked for, but the launcher started {launched.count}: leave the axis out, or "
            f"start {others[0]}."
        )
