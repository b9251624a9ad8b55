"""The thread that watches over a rank: it shows that the rank lives, and ends it where others no longer answer.

A thread blocked in a collective whose peer is gone cannot be woken, so this one names who is missing and ends the
process. It does so on every rank, within the deadline of what is waited for.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from pyperf_suite.ranks.starting import EXIT_CODE, Starting, named, say

BEAT_S = 0.25
# Heartbeats read this far apart tell who lives; long enough for a thread that gets a quarter of a busy core.
LISTEN_S = 1.0
# After the sentence is known, so that slower ranks still hear this one live and read the sentence too.
GRACE_S = 1.0

# Without a word from rank 0 for so long, nothing more will come; a starved rank is heard from sooner.
FIRST_SILENT_S = 20.0

STORE_GONE = "The rendezvous store is gone, so rank 0's node or its torchrun is: what was measured is kept."

_ABORT = "abort"


class Watchdog:
    """Heartbeats, the abort key and the deadline of what the main thread is in. Start it once a process.

    `store` is a client of its own: the main thread's may be blocked in a wait. `starting` knows of ranks of this node
    that have not joined.
    """

    def __init__(self, store: Any, rank: int, count: int, starting: Starting | None = None) -> None:
        self._store, self._rank, self._count, self._starting = store, rank, count, starting
        self._beats = 0
        self._step = 0
        self._doing = "starting"
        self._deadline: tuple[float, float] | None = None  # when, and how long it was
        self._last_words: list[Callable[[str], None]] = []
        self._before_end: list[Callable[[str], None]] = []
        self._stopped = threading.Event()
        self._handed_over = False
        self._first_heard = ("", time.monotonic())
        self._signals: tuple[int, int] | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch, from the main thread. SIGTERM, which torchrun sends when a rank has died, is taken over."""
        self._beat()
        # Python runs handlers in the main thread, which may be blocked; the byte written to a pipe wakes this one.
        self._signals = os.pipe()
        os.set_blocking(self._signals[1], False)
        signal.signal(signal.SIGTERM, lambda *_: None)
        signal.set_wakeup_fd(self._signals[1], warn_on_full_buffer=False)
        self._thread.start()

    def stop(self) -> None:
        """End the thread: the rank is done."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def hand_over(self) -> None:
        """The main thread tells and ends by itself from now on; this one only shows that the rank lives."""
        self._handed_over = True

    def at_end(self, last_words: Callable[[str], None]) -> None:
        """Call `last_words(sentence)` before the process is ended, to keep what was measured and tell why."""
        self._last_words.append(last_words)

    def before_end(self, release: Callable[[str], None]) -> None:
        """Call `release(sentence)` first of all: aborts what hangs, so that devices are left clean."""
        self._before_end.append(release)

    def enter(self, step: int, doing: str, deadline_s: float | None) -> None:
        """The main thread is in step number `step`, which must be over within `deadline_s`."""
        self._step, self._doing = step, doing
        self._deadline = None if deadline_s is None else (time.monotonic() + deadline_s, deadline_s)
        self._beat()

    def leave(self) -> None:
        """The main thread is out of it."""
        self._deadline = None

    def who_is_missing(self, doing: str, waited_s: float, otherwise: str = "") -> str:
        """One sentence that names the ranks that do not answer, the same on all ranks: the first to know says it.

        `otherwise` is what to say where all are heard.
        """
        said = self._said()
        if said:
            return said
        before = self._heard()
        self._live_for(LISTEN_S)
        said = self._said()
        if said:
            return said
        after = self._heard()
        sentence = self._who_did_not_start(after, is_terminated=not doing)
        sentence = sentence or _who_is_silent(before, after, self._rank, doing, waited_s)
        sentence = sentence or otherwise or _who_is_behind(after, self._step, doing, waited_s)
        sentence = str(self._store.compare_set(_ABORT, "", sentence).decode())
        if self._starting is not None:
            self._starting.tell(sentence)
        return sentence

    def _who_did_not_start(self, heard: Sequence[str], is_terminated: bool) -> str:
        """A sentence on ranks of this node that died or were stopped before they joined; empty if there are none."""
        if self._starting is None:
            return ""
        absent = self._starting.absent(rank for rank, beat in enumerate(heard) if not beat)
        fates = {"died": "died", "stopped": "was stopped by a signal", "left": "ended by itself"}
        # The launcher saw a death; whoever has not even begun by now is it.
        fates |= {"silent": "died"} if is_terminated else {}
        for fate, how in fates.items():
            ranks = [rank for rank in absent if absent[rank] == fate]
            if ranks:
                return (
                    f"{named(ranks)} {how} while starting, before the ranks had joined: these ranks are ended; what "
                    "was measured is kept."
                )
        return ""

    def announce(self, sentence: str) -> None:
        """End all other ranks with this sentence; this one goes on alone."""
        self.hand_over()
        self._store.compare_set(_ABORT, "", sentence)

    def _watch(self) -> None:
        while not self._stopped.is_set():
            terminated = self._sleep_until_sigterm(BEAT_S)
            try:
                self._beat()
                sentence = "" if self._handed_over else self._trouble(terminated)
            except RuntimeError:  # the store is gone, and with it the way to agree on anything
                sentence = STORE_GONE
            if sentence and not self._stopped.is_set() and not self._handed_over:
                self._finish(sentence)

    def _trouble(self, terminated: bool) -> str:
        said = self._said()
        if said:
            return said
        if terminated:
            return self.who_is_missing("", 0.0)
        deadline = self._deadline
        if deadline is not None and time.monotonic() > deadline[0]:
            return self.who_is_missing(self._doing, deadline[1])
        if self._rank != 0 and self._first_is_silent():
            return self.who_is_missing(self._doing, FIRST_SILENT_S)
        return ""

    def _first_is_silent(self) -> bool:
        heard, since = self._store.get("alive/0").decode() if self._store.check(["alive/0"]) else "", time.monotonic()
        if heard != self._first_heard[0]:
            self._first_heard = (heard, since)
        return since - self._first_heard[1] > FIRST_SILENT_S

    def _sleep_until_sigterm(self, seconds: float) -> bool:
        """Sleep; True at once where SIGTERM arrives meanwhile."""
        assert self._signals is not None
        ready, _, _ = select.select([self._signals[0]], [], [], seconds)
        return bool(ready) and signal.SIGTERM in os.read(self._signals[0], 64)

    def _finish(self, sentence: str) -> None:
        for release in self._before_end:
            with contextlib.suppress(Exception):
                release(sentence)
        say(self._rank, sentence)
        for last_words in self._last_words:
            with contextlib.suppress(Exception):
                last_words(sentence)
        with contextlib.suppress(RuntimeError):
            self._live_for(GRACE_S)
        os._exit(EXIT_CODE)

    def _live_for(self, seconds: float) -> None:
        """Wait, and be heard meanwhile: other ranks listen at the same time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._beat()
            time.sleep(BEAT_S)

    def _beat(self) -> None:
        self._beats += 1
        self._store.set(f"alive/{self._rank}", f"{self._beats} {self._step} {self._doing}")

    def _said(self) -> str:
        told = self._starting.told() if self._starting is not None else ""
        if told:
            return str(self._store.compare_set(_ABORT, "", told).decode())
        return self._store.get(_ABORT).decode() if self._store.check([_ABORT]) else ""

    def _heard(self) -> list[str]:
        """The last heartbeat of each rank: how many, the number of its step, what it does; "" from who never came."""
        keys = [f"alive/{rank}" for rank in range(self._count)]
        return [self._store.get(key).decode() if self._store.check([key]) else "" for key in keys]


def _who_is_silent(before: Sequence[str], after: Sequence[str], me: int, doing: str, waited_s: float) -> str:
    """A sentence on the ranks whose heart did not beat between two hearings; empty where all were heard."""
    silent = [rank for rank, (one, two) in enumerate(zip(before, after, strict=True)) if one == two and rank != me]
    never = [rank for rank in silent if not after[rank]]
    waiting = _while_waiting(doing, waited_s)
    if never:
        return f"{named(never)} never joined{waiting}: these ranks are ended; what was measured is kept."
    if silent:
        last = after[silent[0]].split(" ", 2)[2]
        return (
            f"{named(silent)} stopped answering in {last!r}{waiting}: the process died, was stopped or lost its "
            "network; these ranks are ended and what was measured is kept."
        )
    return ""


def _who_is_behind(after: Sequence[str], my_step: int, doing: str, waited_s: float) -> str:
    """A sentence where all ranks live: on those at an earlier step, else that none came out of this one."""
    if not doing:
        return "The run was ended by SIGTERM from outside: what was measured is kept."
    behind = [rank for rank, beat in enumerate(after) if int(beat.split(" ", 2)[1]) < my_step]
    if behind:
        where, waiting = after[behind[0]].split(" ", 2)[2], _while_waiting(doing, waited_s)
        return f"{named(behind)} did not get past {where!r}{waiting}: these ranks are ended; what was measured is kept."
    return (
        f"No rank came out of {doing!r} within {waited_s:g} s, though all are alive: the network between them may be "
        "stuck, or the deadline too short (--deadline); what was measured is kept."
    )


def _while_waiting(doing: str, waited_s: float) -> str:
    if not doing:
        return ""
    return f" while the others waited {waited_s:g} s for {doing!r}" if waited_s else f" while others were in {doing!r}"
