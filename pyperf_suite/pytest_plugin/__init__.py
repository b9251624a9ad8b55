"""Tests of any project, measured under pytest: the `suite` fixture, and `--suite-measure` for `benchmark`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from pyperf_suite.errors import ending_of

# Set in the environment of a session that measures tests for another one.
CHILD = "PYPERF_PYTEST_CHILD"


@contextmanager
def spoken_errors() -> Iterator[None]:
    """A UserError, or a package that is broken, ends the session with its sentence and exit code, and no traceback."""
    try:
        yield
    except Exception as error:
        if (ending := ending_of(error)) is None:
            raise
        pytest.exit(str(ending), returncode=ending.exit_code)


@dataclass(frozen=True)
class Call:
    """A test's request to pytest-benchmark's fixture.

    `rounds` of 0 leaves it to the stop rule; otherwise exactly that number are made, each of `iterations` calls, after
    `warmup_rounds`. `setup` runs before each of them and `teardown` after it, untimed.
    """

    function: Callable[..., Any]
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    setup: Callable[[], Any] | None = None
    teardown: Callable[..., Any] | None = None
    rounds: int = 0
    warmup_rounds: int = 0
    iterations: int = 1

    def arguments(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """Return the next round's arguments. Raises TypeError where `setup` makes arguments and there are others."""
        made = self.setup() if self.setup is not None else None
        if made and (self.args or self.kwargs):
            raise TypeError("Can't use `args` or `kwargs` if `setup` returns the arguments.")
        return made or (self.args, self.kwargs)

    def once(self) -> Any:
        """Call the function once, with setup and teardown, and return its result."""
        args, kwargs = self.arguments()
        result = self.function(*args, **kwargs)
        if self.teardown is not None:
            self.teardown(*args, **kwargs)
        return result
