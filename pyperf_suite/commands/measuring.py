"""What every command that measures is made of: options, the ranks it may be one of, its run's folder, progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyperf_suite.errors import Interrupted, UserError

if TYPE_CHECKING:
    from pyperf_suite.runner.outlook import Progress
    from pyperf_suite.runner.plan import Plan
    from pyperf_suite.runner.results import RunFolder
    from pyperf_suite.runner.session import Session

Command = TypeVar("Command", bound=Callable[..., Any])

PROFILE_NAMES = ("quick", "standard", "full")


class Finite(click.FloatRange):
    """A number of the range that is neither nan, which no comparison keeps out, nor infinite."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


wide_option = click.option("--wide", is_flag=True, help="Print every column of a table, however wide the terminal is.")


def measuring_options(command: Command) -> Command:
    """The options of every command that measures cases of probes in a profile."""
    options = (
        click.option("--profile", default="quick", show_default=True, metavar="NAME", help=", ".join(PROFILE_NAMES)),
        click.option(
            "-a",
            "--axis",
            "axes",
            multiple=True,
            metavar="[PROBE.]AXIS=VALUE[,VALUE]",
            help="Replace an axis of the sweep, as in tile=64x64x256 or workers=1,2.",
        ),
        click.option("--seed", default=0, show_default=True, help="Seed of the order in which cases are visited."),
        click.option(
            "--budget",
            "budget_s",
            type=Finite(0, min_open=True),
            metavar="SECONDS",
            help="End the run in order within so many seconds, the most informative cases first.",
        ),
    )
    command = run_options(command)
    for option in reversed(options):
        command = option(command)
    return command


def run_options(command: Command) -> Command:
    """Where to measure, where results lie, and how to tell of them."""
    options = (
        click.option("--device", default="auto", show_default=True, metavar="DEVICE", help="auto, cpu, or cuda:N."),
        click.option(
            "--results", default="bench_results", show_default=True, type=click.Path(path_type=Path), metavar="FOLDER"
        ),
        click.option(
            "--resume",
            is_flag=False,
            flag_value="latest",
            metavar="[RUN]",
            help="Go on with the newest run of the same cases, or with RUN; what it holds is not measured again.",
        ),
        click.option(
            "--deadline",
            "deadline_s",
            default=120.0,
            show_default=True,
            type=Finite(0, min_open=True),
            metavar="SECONDS",
            help="For one case, and for each step that several ranks take together.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON instead of tables."),
        wide_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


def workers_of_the_launcher(device: str, deadline_s: float) -> Any:
    """Rank 0's hold on all ranks; None in the others once the run is over, for they have nothing to tell."""
    from pyperf_suite.hardware.devices import resolve
    from pyperf_suite.ranks.group import Group, RanksMissing
    from pyperf_suite.runner.group_workers import GroupWorkers
    from pyperf_suite.runner.worker import follow

    group = Group()
    if group.rank == 0:
        return GroupWorkers(group, resolve(device), deadline_s)
    try:
        follow(group)
    except RanksMissing as missing:
        raise UserError(f"rank {group.rank}: {missing}") from None
    finally:
        group.close()
    return None


def folder_of(plan: Plan, results: Path, resume: str | None) -> RunFolder:
    """A new run's folder, or the one to go on with. Raises UserError where there is none."""
    from pyperf_suite.hardware.identity import identity
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


# How often a bar's estimate of the time left is made anew.
ESTIMATE_EVERY_S = 1.0


@contextmanager
def progress_on(console: Any, total: int) -> Iterator[Progress]:
    """A bar where there is a terminal; elsewhere a line of text every ten seconds, for a log."""
    from pyperf_suite.runner.outlook import ProgressLines, in_words

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
                bar.update(task, left=f"about {in_words(left_s())} left")
                estimated_s = time.monotonic()

        yield show
