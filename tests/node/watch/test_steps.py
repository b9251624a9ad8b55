"""Steps from a job's own calls and from lines of its log."""

from __future__ import annotations

import os
import struct
import time

import pytest

import pyperf_suite
from pyperf_suite.errors import UserError
from pyperf_suite.node.watch.command import EndedSteps, LogReader, MarkReader, summary
from pyperf_suite.user_kernels import api


@pytest.fixture(autouse=True)
def _unmarked(monkeypatch):
    monkeypatch.setattr(api, "_marks", None)


def test_marks_of_a_watched_job_are_read_as_they_come(tmp_path, monkeypatch):
    monkeypatch.setenv(api.MARKS_VARIABLE, str(tmp_path))
    monkeypatch.setenv("RANK", "3")
    reader, steps = MarkReader(tmp_path), {}
    for count in (1, 3):
        for _ in range(count):
            pyperf_suite.watch_step(tokens=100)
            time.sleep(0.01)
        reader.read(steps, {})
    os.close(api._marks)
    [(rank, found)] = steps.items()
    assert (rank, len(found.seconds), found.tokens) == (3, 3, 300.0)
    assert found.tokens_per_s == pytest.approx(300 / sum(found.seconds))


def test_marks_are_of_the_rank_that_their_process_is_known_to_be(tmp_path):
    for process in (50, 60):  # two ranks that no variable numbers
        marks = b"".join(struct.pack(api.MARK_FORMAT, process + k, 1.0) for k in range(4))
        (tmp_path / f"0-{process}.steps").write_bytes(marks)
    steps = {}
    MarkReader(tmp_path).read(steps, {60: 1})
    assert {rank: found.seconds for rank, found in steps.items()} == {0: [1.0] * 3, 1: [1.0] * 3}


def test_an_unwatched_job_marks_nothing_and_never_fails(tmp_path, monkeypatch):
    monkeypatch.delenv(api.MARKS_VARIABLE, raising=False)
    pyperf_suite.watch_step()
    assert api._marks == -1
    monkeypatch.setattr(api, "_marks", None)
    monkeypatch.setenv(api.MARKS_VARIABLE, str(tmp_path / "gone"))
    pyperf_suite.watch_step()
    assert api._marks == -1


@pytest.mark.parametrize(
    ("pattern", "lines", "seconds", "tokens"),
    [
        (r"took ([\d.]+) s", "took 0.5 s\nother\ntook 1.5 s\n", [0.5, 1.5], 0),
        (r"(?P<ms>[\d.]+) ms", "step 1: 20 ms\nstep 2: 30 ms\n", [0.02, 0.03], 0),
        (r"(?P<seconds>\S+)s (?P<tokens>[\d,]+)", "1.0s 4,096\n2.0s 4,096\n", [1.0, 2.0], 8192),
        (r"(?P<ms>\d+)ms", "10ms\r20ms\r30", [0.01, 0.02], 0),  # a progress bar, its last state not complete
        (r"(?P<ms>\S+) ms", "nan? ms\n", [], 0),
    ],
)
def test_lines_that_match_tell_of_steps(pattern, lines, seconds, tokens):
    steps, log = EndedSteps(), LogReader(pattern)
    for part in (lines[:7], lines[7:]):
        log.feed(part.encode(), steps)
    assert steps.seconds == pytest.approx(seconds)
    assert steps.tokens == tokens


def test_numbers_of_steps_divide_the_time_between_lines(monkeypatch):
    steps, log, now = EndedSteps(), LogReader(r"step (?P<step>\d+)"), iter((100.0, 110.0, 130.0))
    monkeypatch.setattr(time, "monotonic", lambda: next(now))
    log.feed(b"step 10\nstep 20\nstep 30\n", steps)
    assert steps.seconds == [1.0, 2.0]


def test_a_coloured_log_is_read_and_it_is_known_whether_any_line_matched() -> None:
    steps, log = EndedSteps(), LogReader(r"^step (?P<step>\d+) took (?P<ms>[\d.]+) ms$")
    log.feed(b"\x1b[2K\x1b[1;32mstarting\x1b[0m\n", steps)
    assert not log.matched
    log.feed(b"\x1b[36mstep\x1b[0m 1 took \x1b[1m250\x1b[0m ms\n", steps)
    assert log.matched
    assert steps.seconds == [0.25]


@pytest.mark.parametrize("pattern", ["(", "step", r"(?P<loss>\d+)"])
def test_a_pattern_that_can_tell_nothing_is_refused(pattern):
    with pytest.raises(UserError, match="--step-pattern"):
        LogReader(pattern)


def test_rates_are_of_all_ranks_together():
    steps = {rank: EndedSteps() for rank in range(2)}
    for each in steps.values():
        for k in range(11):
            each.ended(10.0 + 0.1 * k, tokens=1000)
    found = summary(steps, flop_per_token=1e9, peak_flop_per_s=1e14, ranks=2)
    assert found["tokens_per_s"] == pytest.approx(20_000)
    assert found["mfu"] == pytest.approx(0.1)
    assert found["ranks"][1]["steps"] == 10
    assert found["ranks"][1]["p90_s"] == pytest.approx(0.1)
    assert summary({}, 1e9, 1e14, 2) == {}
