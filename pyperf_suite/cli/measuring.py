"""What every command that measures is made of: the ranks it may be one of, its run's folder, progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyperf_suite.errors import ExitCode, Interrupted, UserError

if TYPE_CHECKING:
    from pyperf_suite.record.record import Record
    from pyperf_suite.runner.plan import Plan, PlannedCase, Progress, Trial
    from pyperf_suite.runner.results import RunFolder
    from pyperf_suite.runner.session import Session


def workers_of_the_launcher(device: str, deadline_s: float) -> Any:
    """Rank 0's hold on all ranks; None in the others once the run is over, for they have nothing to report."""
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.ranks.group import Group, RanksMissing
    from pyperf_suite.runner.worker import follow
    from pyperf_suite.runner.workers import GroupWorkers

    group = Group()
    if group.rank == 0:
        return GroupWorkers(group, resolve(device), deadline_s)
    try:
        follow(group)
    except RanksMissing as missing:
        raise UserError(f"rank {group.rank}: {missing}", ExitCode.FAILED) from None
    finally:
        group.close()
    return None


def folder_of(plan: Plan, results: Path, resume: str | None) -> RunFolder:
    """A new run's folder, or the one to go on with. Raises UserError where there is none."""
    from pyperf_suite.hardware.machine import identity
    from pyperf_suite.runner.results import create_run, find_run

    machine = identity(plan.device)
    return find_run(results, machine, plan, resume) if resume else create_run(results, machine, plan)


@contextmanager
def kept_when_interrupted(session: Session) -> Iterator[None]:
    """Close the session at the end; an interrupt is a UserError that says what is kept and how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        count = len(session.records)
        raise Interrupted(
            f"Interrupted; {count} record{' is' if count == 1 else 's are'} kept in {session.folder.records_path}. "
            f"Go on with --resume {session.folder.run_id}."
        ) from None
    finally:
        session.close()


def measure_all(
    session: Session,
    what: str,
    trials: Sequence[Trial] | None = None,
    describe: Callable[[PlannedCase, Record], str] = lambda planned, record: f"{planned.case.label}: {record.outcome}",
    afterwards: Callable[[Progress, int], None] | None = None,
) -> None:
    """Measure these trials, by default all, and finish; progress and what the budget left out go to standard error.

    `afterwards(show, done)` may measure more. What is interrupted can be resumed.
    """
    from rich.console import Console

    console = Console(stderr=True, emoji=False)
    console.print(f"{what}: {session.outlook.line}", highlight=False, soft_wrap=True)
    with kept_when_interrupted(session):
        session.open()
        if session.kept:
            console.print(session.kept, highlight=False, soft_wrap=True)
        trials = session.trials() if trials is None else trials
        with progress_on(console, len(trials)) as show:
            session.measure_trials(trials, show, describe)
            if afterwards is not None:
                afterwards(show, len(trials))
        session.finish()
    if session.cut_short:
        console.print(session.cut_short, highlight=False, soft_wrap=True)


# How often a bar's estimate of the time left is made anew.
ESTIMATE_EVERY_S = 1.0


class _Left:
    """An estimate that counts down, each time that it is drawn."""

    def __init__(self, seconds: float) -> None:
        self._end_s = time.monotonic() + seconds

    def __str__(self) -> str:
        from pyperf_suite.runner.plan import in_words

        return f"about {in_words(max(0.0, self._end_s - time.monotonic()))} left"


@contextmanager
def progress_on(console: Any, total: int) -> Iterator[Progress]:
    """A bar where there is a terminal; elsewhere a line of text every ten seconds, for a log."""
    from pyperf_suite.runner.plan import ProgressLines

    if not console.is_terminal:
        yield ProgressLines(lambda line: console.print(line, highlight=False, markup=False, soft_wrap=True))
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[left]}"),
        TextColumn("{task.description}", markup=False),
    )
    with Bar(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total, left="")
        estimated_s = -math.inf

        def show(done: int, total: int, last: str, left_s: Callable[[], float]) -> None:
            nonlocal estimated_s
            bar.update(task, completed=done, total=total, description=last)
            if time.monotonic() - estimated_s >= ESTIMATE_EVERY_S:
                bar.update(task, left=_Left(left_s()))
                estimated_s = time.monotonic()

        yield show
