"""Making the comparisons of a selfcheck: in an order that may be cut anywhere, each on disk before the next begins."""

from __future__ import annotations

import datetime
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite import files
from pyperf_suite.errors import UserError
from pyperf_suite.history.pairs.arms import PairedCase
from pyperf_suite.history.pairs.pair_journal import PairJournal, WritePair, comparison_folder
from pyperf_suite.history.selfcheck.selfcheck import (
    COMPARISONS,
    MANIFEST,
    SCHEMA_VERSION,
    Comparison,
    Selfcheck,
    open_selfcheck,
    selfchecks,
)
from pyperf_suite.history.verdict import Judgement

# Compares a case with itself slowed down by a share: case, share, seed, and who is told of each pair.
Compare = Callable[[PairedCase, float, int, WritePair], Judgement]


@dataclass(frozen=True)
class Planned:
    """One comparison to be made; `shift` is the injected slowdown as a share."""

    shift: float
    number: int
    case: PairedCase


def planned(counts: Mapping[float, int], cases: Sequence[PairedCase], seed: int) -> list[Planned]:
    """So many comparisons of each shift, spread evenly over the cases and, for each shift, over the whole time.

    Wherever it is cut, every shift has had its share, and the machine's hours fall on all alike.
    """
    chance = random.Random(seed)
    timed = [
        ((number + chance.random()) / count, Planned(shift, number, cases[(number + first) % len(cases)]))
        for first, (shift, count) in enumerate(sorted(counts.items()))
        for number in range(count)
    ]
    return [each for _, each in sorted(timed, key=lambda item: item[0])]


def start(results: Path, machine: str, settings: Mapping[str, Any]) -> Selfcheck:
    """A new selfcheck's folder. Raises UserError where the results folder cannot be written."""
    manifest = {"schema_version": SCHEMA_VERSION, "machine": machine, **settings}
    return open_selfcheck(comparison_folder(results, machine, manifest, kind="selfcheck"))


def resumable(results: Path, machine: str, settings: Mapping[str, Any]) -> Selfcheck:
    """The newest selfcheck of the same settings, to go on with. Raises UserError where there is none."""
    same = [each for each in selfchecks(results, machine) if _is_same(each.settings, settings)]
    if not same:
        raise UserError(
            f"There is no selfcheck of the same benchmarks, rule and budget to resume in {results / machine}: "
            "start one without --resume."
        )
    return same[-1]


def _is_same(stored: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    plain = json.loads(json.dumps(settings))
    return all(stored.get(name) == plain[name] for name in ("device", "rule", "budget_s", "cases"))


def make_comparisons(
    selfcheck: Selfcheck,
    plan: Sequence[Planned],
    compare: Compare,
    *,
    seed: int = 0,
    commit: str = "",
    time_limit_s: float | None = None,
    progress: Callable[[int, int, Comparison], None] | None = None,
) -> Selfcheck:
    """Make those of the plan that the selfcheck does not hold yet, until the time limit; return all there are.

    None begins after the limit, so the last may end later by its own budget. What was made before an interruption is
    kept. Raises UserError where the disk refuses a line, or another process is writing this selfcheck.
    """
    begin = time.monotonic()
    done = {(each.shift, each.number) for each in selfcheck.comparisons if each.verdict != "failed"}
    path = selfcheck.path / COMPARISONS
    with _alone_with(path), PairJournal(path) as write:
        for position, each in enumerate(plan, start=1):
            if (each.shift, each.number) in done:
                continue
            if time_limit_s is not None and time.monotonic() - begin >= time_limit_s:
                break
            comparison = _made(
                each, compare, random.Random(f"{seed} {each.shift} {each.number}").getrandbits(32), commit
            )
            write(comparison.to_json())
            if progress is not None:
                progress(position, len(plan), comparison)
    found = open_selfcheck(selfcheck.path)
    _write_summary(found)
    return found


def _made(each: Planned, compare: Compare, seed: int, commit: str) -> Comparison:
    log_ratios: list[float] = []
    now = datetime.datetime.now(datetime.timezone.utc)
    begin = time.monotonic()
    finding = compare(each.case, each.shift, seed, lambda pair: log_ratios.append(float(pair["log_ratio"])))
    return Comparison(
        shift=each.shift,
        number=each.number,
        probe=each.case.probe,
        case_id=each.case.case_id,
        label=each.case.label,
        verdict=finding.verdict,
        ratio=finding.ratio.value if finding.ratio is not None else None,
        seconds=round(time.monotonic() - begin, 3),
        log_ratios=tuple(log_ratios),
        started_at=now.isoformat(timespec="seconds"),
        commit=commit,
        reason=finding.sentence if finding.verdict == "failed" else "",
        machine=dict(finding.details.get("machine", {})),
    )


def _write_summary(selfcheck: Selfcheck) -> None:
    """The rates beside the settings, for whoever reads the file alone; replaced in one step."""
    whole = dict(selfcheck.settings) | {"summary": selfcheck.to_json()}
    path = selfcheck.path / MANIFEST
    try:
        files.write_whole(path, json.dumps(whole, indent=2) + "\n")
    except OSError as error:
        raise UserError(
            f"{path} cannot be written ({error.strerror}); every comparison is kept in {COMPARISONS} beside it."
        ) from None


@contextmanager
def _alone_with(path: Path) -> Iterator[None]:
    """Keep a second selfcheck from writing the same file, and end a line that a killed one left torn."""
    with ExitStack() as resources:
        try:
            file = resources.enter_context(files.open_for_appending(path))
            _lock(file.fileno())
            content = files.read_bytes(path)
            if content and not content.endswith(b"\n"):
                file.write(b"\n")
        except BlockingIOError:
            raise UserError(f"Another process is writing {path}: wait until that selfcheck is over.") from None
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror}.") from None
        yield


def _lock(descriptor: int) -> None:
    """Keep other writers out for as long as the file is open. Raises BlockingIOError where one is there."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
