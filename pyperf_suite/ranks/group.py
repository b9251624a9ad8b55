"""The ranks of a run as one group that agrees: rank 0 publishes, everyone answers, and who does not is named.

All ranks go through the same numbered steps; each step has a deadline. Their clocks are brought together, so that
arrivals on different machines can be compared: ranks on one machine share a clock; others exchange timestamps with
rank 0, and the quickest exchange counts (Cristian, Probabilistic clock synchronization, 1989).
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import importlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyperf_suite.errors import Unsupported, UserError, out_of_memory
from pyperf_suite.process.system import sweep
from pyperf_suite.ranks.launch import RankEnvironment, rank_environment
from pyperf_suite.ranks.watchdog import STORE_GONE, Watchdog, stand_by

# Exchanges of timestamps between two machines.
EXCHANGES = 50
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")

JOIN_S = 60.0
LATER_S = 1.0  # others learn at the latest this long after rank 0 what it found at its own deadline
LONGEST_WAIT_S = 600.0  # one wait of the store; waits without a deadline repeat it


class RanksMissing(Exception):
    """Some ranks did not answer in time, in the turn of `case`; the message names them, and the group is over."""

    case = 0


class Group:
    """This rank among the others. Join once a process; use as a context manager."""

    def __init__(self, environment: RankEnvironment | None = None, deadline_s: float = JOIN_S) -> None:
        """Connect and wait until all ranks have. Raises UserError where the store cannot be reached."""
        self.environment = environment or rank_environment()
        self.rank, self.count = self.environment.rank, self.environment.count
        starting = stand_by() if self.count > 1 else None
        self.store = connect(self.environment, deadline_s)
        self._step = 0
        self._stale: list[str] = []
        self.watchdog = Watchdog(
            connect(self.environment, deadline_s) if self.environment.launched else self.store,
            self.rank,
            self.count,
            starting,
        )
        # A daemon thread that is inside torch's store when the interpreter ends has C++ end the process by SIGABRT.
        atexit.register(self.close)
        if self.count > 1:
            self.watchdog.start()
        if starting is not None:
            starting.hand_over()

    def gather(self, doing: str, value: Any, deadline_s: float | None) -> list[Any]:
        """Every rank's JSON value in order of rank, on every rank; None waits as long as rank 0 lives.

        Raises RanksMissing where some do not answer within the deadline, and UserError where another rank is at
        another step, which only ranks that were started differently can be.
        """
        step = self._next()
        mine = json.dumps([doing, value])
        if self.count == 1:
            return [json.loads(mine)[1]]
        self.store.set(f"{step}/{self.rank}", mine)
        everyone = f"{step}/all"
        with self._watched(doing, deadline_s):
            if self.rank == 0:
                keys = [f"{step}/{rank}" for rank in range(self.count)]
                self._wait(keys, doing, deadline_s)
                answers = [json.loads(answer) for answer in self.store.multi_get(keys)]
                self.store.set(everyone, json.dumps(answers))
                # Every rank has come to this step, so all have read the keys of earlier ones.
                for key in self._stale:
                    self.store.delete_key(key)
                self._stale = [*keys, everyone]
            else:
                self._wait([everyone], doing, None if deadline_s is None else deadline_s + LATER_S)
                answers = json.loads(self.store.get(everyone))
        elsewhere = [(rank, there) for rank, (there, _) in enumerate(answers) if there != doing]
        if elsewhere:
            rank, there = elsewhere[0]
            raise UserError(
                f"Rank {rank} is at {there!r} while rank {self.rank} is at {doing!r}: start all ranks of a run with "
                "the same command."
            )
        return [answer for _, answer in answers]

    def to_first(self, doing: str, value: Any, deadline_s: float) -> list[Any]:
        """Every rank's JSON value in order on rank 0; the others go on at once with an empty list.

        Raises RanksMissing where some do not answer within the deadline.
        """
        step = self._next()
        if self.count == 1:
            return [json.loads(json.dumps(value))]
        self.store.set(f"{step}/{self.rank}", json.dumps(value))
        if self.rank != 0:
            return []
        keys = [f"{step}/{rank}" for rank in range(self.count)]
        with self._watched(doing, deadline_s):
            self._wait(keys, doing, deadline_s)
            answers = [json.loads(answer) for answer in self.store.multi_get(keys)]
        for key in keys:
            self.store.delete_key(key)
        return answers

    def from_first(self, doing: str, value: Any, deadline_s: float | None) -> Any:
        """Rank 0's JSON value on every rank; the others' is ignored. None waits as long as rank 0 lives."""
        step = self._next()
        if self.count == 1:
            return json.loads(json.dumps(value))
        key = f"{step}/first"
        if self.rank == 0:
            self.store.set(key, json.dumps(value))
            self._stale.append(key)
            return json.loads(json.dumps(value))
        with self._watched(doing, deadline_s):
            self._wait([key], doing, deadline_s)
            return json.loads(self.store.get(key))

    @contextlib.contextmanager
    def within(self, doing: str, deadline_s: float) -> Iterator[None]:
        """A block that cannot be interrupted, as a collective: past the deadline the watchdog ends the process."""
        self._next()
        with self._watched(doing, deadline_s):
            yield

    def broken(self, doing: str, error: Exception) -> RanksMissing:
        """Return the error for a step that `error` ended here: it names who is gone, else this rank with `error`."""
        memory = out_of_memory(error)
        said = memory or (
            f"{type(error).__name__}: {str(error).strip().splitlines()[0][:300]}" if str(error).strip() else repr(error)
        )
        alone = f"Rank {self.rank} failed in {doing!r} ({said}): these ranks are ended and what was measured is kept."
        if memory:
            # First of all, for whoever reads outcomes: the model does not fit, and nothing is broken.
            alone = f"{memory} by rank {self.rank} in {doing!r}: these ranks are ended and what was measured is kept."
        if self.count == 1:
            return RanksMissing(alone)
        self.watchdog.hand_over()
        return RanksMissing(self.watchdog.who_is_missing(doing, 0.0, alone))

    def close(self) -> None:
        """Leave the group, and remove what ranks of this machine left that were killed."""
        self.watchdog.stop()
        sweep()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _next(self) -> int:
        self._step += 1
        return self._step

    @contextlib.contextmanager
    def _watched(self, doing: str, deadline_s: float | None) -> Iterator[None]:
        # The main thread raises at its own deadline; the watchdog's comes later, for what cannot raise.
        self.watchdog.enter(self._step, doing, None if deadline_s is None else deadline_s + LATER_S / 2)
        try:
            yield
        finally:
            self.watchdog.leave()

    def _wait(self, keys: list[str], doing: str, deadline_s: float | None) -> None:
        """Until all keys are there. Raises RanksMissing past the deadline."""
        end = None if deadline_s is None else time.monotonic() + deadline_s
        while True:
            left = LONGEST_WAIT_S if end is None else max(0.001, end - time.monotonic())
            try:
                self.store.wait(keys, datetime.timedelta(seconds=left))
                return
            except RuntimeError as error:
                if "imeout" not in str(error):
                    raise RanksMissing(STORE_GONE) from None
                if end is None:
                    continue
            # From here on this thread reports, and the watchdog only shows that this rank lives.
            self.watchdog.hand_over()
            raise RanksMissing(self.watchdog.who_is_missing(doing, deadline_s or 0.0))


def connect(environment: RankEnvironment, deadline_s: float) -> Any:
    """A client of the run's store, or its host where this is rank 0 and no launcher hosts it.

    One client serves one thread at a time: a blocked wait blocks it for all. Raises UserError where the store cannot be
    reached or its port is taken, and Unsupported where torch has no distributed package.
    """
    # torch prints a stack trace for every wait that times out, which here is an answer and not an accident.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    try:
        distributed: Any = importlib.import_module("torch.distributed")
    except ImportError:
        raise Unsupported("Collectives need torch, which is not installed.") from None
    if not distributed.is_available():
        raise Unsupported("This torch was built without its distributed package.")
    if not environment.launched:
        return distributed.HashStore()
    hosts = environment.rank == 0 and not environment.agent_store
    try:
        store = distributed.TCPStore(
            environment.address,
            environment.port,
            is_master=hosts,
            wait_for_workers=False,
            timeout=datetime.timedelta(seconds=deadline_s),
            multi_tenant=hosts,
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(_why(environment, hosts, deadline_s, error)) from None
    # A restarted group must not read what its predecessor left.
    return distributed.PrefixStore(f"pyperf_suite/{environment.restart}", store)


def _why(environment: RankEnvironment, hosts: bool, deadline_s: float, error: Exception) -> str:
    place = f"{environment.address}:{environment.port}"
    reason = str(error).strip().splitlines()[0][:160] if str(error).strip() else type(error).__name__
    if hosts:
        return (
            f"Rank 0 cannot host the rendezvous at {place} ({reason}): the port may be in use; choose another with "
            "MASTER_PORT."
        )
    return (
        f"Rank {environment.rank} could not reach the rendezvous at {place} within {deadline_s:g} s ({reason}): "
        "is rank 0 up, and does the network let this port through?"
    )


@dataclass(frozen=True)
class Clock:
    """Offset of rank 0's `time.monotonic_ns()` from this rank's, and its uncertainty."""

    offset_ns: int
    uncertainty_ns: int


def machine_id(group: Group) -> str:
    """Text that ranks share which run on one machine, since it was started; a rank's own where that is unknown."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else f"rank {group.rank}"


def align(group: Group, deadline_s: float) -> Clock:
    """This rank's clock against rank 0's; exact where both are on one machine. All ranks call it together."""
    machines = group.gather("compare machines", machine_id(group), deadline_s)
    clock = Clock(0, 0)
    for rank in range(1, group.count):
        if machines[rank] == machines[0]:
            continue
        with group.within(f"align the clock of rank {rank}", deadline_s):
            if group.rank == 0:
                for exchange in range(EXCHANGES):
                    group.store.get(f"clock/{rank}/{exchange}/request")
                    group.store.set(f"clock/{rank}/{exchange}/stamp", str(time.monotonic_ns()))
            elif group.rank == rank:
                clock = _exchange_stamps(group, rank)
    return clock


def _exchange_stamps(group: Group, rank: int) -> Clock:
    exchanges = []
    for exchange in range(EXCHANGES):
        sent_ns = time.monotonic_ns()
        group.store.set(f"clock/{rank}/{exchange}/request", "")
        stamp_ns = int(group.store.get(f"clock/{rank}/{exchange}/stamp"))
        round_trip_ns = time.monotonic_ns() - sent_ns
        exchanges.append((round_trip_ns, stamp_ns - (sent_ns + round_trip_ns // 2)))
    round_trip_ns, offset_ns = min(exchanges)
    return Clock(offset_ns, -(-round_trip_ns // 2))
