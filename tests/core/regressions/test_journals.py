import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.files import strict_json
from pyperf_suite.regressions.stored import series as journals
from pyperf_suite.regressions.stored.series import BenchmarkSeries, Measured
from pyperf_suite.regressions.stored.store import Store, read_side

KEY = ("tile_wave", "0123456789abcdef")


@pytest.fixture
def only_series(results):
    def find(**wanted):
        (series,) = Store(results).series(**wanted)
        return series

    return find


def breaks(*states, kind="timing"):
    points = tuple(Measured("m", "run", "p", "c", "label", kind, medians=(1e-3,), state=state) for state in states)
    series = BenchmarkSeries("m", "p", "c", "label", "s", points, kind=kind)
    return [(found.index, found.what) for found in series.breaks]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("{} {}", "not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' twice"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("[" * 100_000, "nested too deeply"),
        (b"\xff", "UTF-8"),
        ("1" * 100_000, "thousands of digits"),
    ],
)
def test_what_is_not_json_in_the_strict_sense_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        strict_json(text)


def test_a_case_of_an_operator_that_is_gone_keeps_its_name(make_record, write_run):
    case = {"operator": "gone", "parameters": {"n": 3}, "implementation": "old", "mode": "sustained"}
    (one,) = read_side(write_run(records=[make_record(case=case)])).benchmarks.values()
    assert one.label == "gone[old n=3 mode=sustained]"


def test_clocks_are_those_of_the_multiprocessors_or_else_of_the_cores(make_record, write_run):
    clock = {"unit": "Hz", **dict.fromkeys(("value", "low", "high", "q20", "q80"), 1.7e9), "samples": []}
    seen = {"converged": True, "before": {"cpu_mhz": {"median": 2000}}, "after": {"cpu_mhz": {"median": 3000}}}
    records = [make_record(metrics={"sm_clock": clock}), make_record(process=1, quality=seen)]
    assert read_side(write_run(records=records)).benchmarks[KEY].clock_hz == (1.7e9 + 2.5e9) / 2


def test_exact_figures_and_reasons_of_failure_are_kept(make_record, write_run):
    static = make_record(exact={"registers": 96}, case_id="b" * 16)
    side = read_side(write_run(records=[static, make_record(seconds=None)]))
    assert side.benchmarks["tile_wave", "b" * 16].exact == {"registers": ("bytes", 96.0)}
    assert (side.benchmarks[KEY].medians, side.benchmarks[KEY].reason) == ((), "failed: a made-up reason")


def test_lines_that_are_no_records_are_noted_and_a_torn_end_is_too(write_run):
    path = write_run()
    with path.open("a") as file:
        file.write('{"schema_version": 99}\nnot JSON\n\n{"run_id": "cut o')
    side = read_side(path)
    assert len(side.benchmarks) == 1
    for note, line, why in zip(side.notes, (2, 3, 5), ("version 99", "not JSON", "cut off"), strict=True):
        assert f"{path}, line {line} is not a record" in note
        assert why in note


def test_a_line_too_long_is_passed_over(write_run, monkeypatch):
    path = write_run()
    longest = len(path.read_bytes())
    with path.open("a") as file:
        file.write("[" * (3 * longest) + "\n")
    write_run(seconds=[2e-3])
    monkeypatch.setattr(journals, "LONGEST_LINE_BYTES", longest)
    side = read_side(path)
    assert side.benchmarks[KEY].medians == (2e-3,)  # the same process, measured again
    assert "longer than" in side.notes[0]


def test_what_is_no_side_is_refused_in_one_sentence(tmp_path, write_run, make_record):
    other = make_record(identity={"slug": "cpu-other-64c"})
    for path, why in (
        (tmp_path, "not a run's folder"),
        (tmp_path / "absent.jsonl", "No such file"),
        (write_run("20260109T000000Z-0001", records=[]), "no results to compare"),
        (write_run(records=[make_record(), other]), "several machines"),
    ):
        with pytest.raises(UserError, match=why):
            read_side(path)


def test_failures_are_counted_unless_resumed_and_a_run_of_failures_is_named(write_run, only_series):
    write_run("20260101T000000Z-0001", [None, 1e-3, None])
    write_run("20260101T000000Z-0001", [1e-3])
    write_run("20260102T000000Z-0001", [None, None])
    write_run("20260103T000000Z-0001", [None, 1e-3])
    write_run("20260103T000000Z-0001", [1e-3])
    series = only_series()
    assert [(one.ok, one.failed) for one in series.points] == [(2, 0)]
    assert series.failed_runs == ("20260101T000000Z-0001", "20260102T000000Z-0001")


def test_a_run_resumed_with_other_code_is_dirty(write_run, make_record, only_series):
    states = [{"source": {"commit": commit * 40, "dirty": False}} for commit in "ab"]
    write_run(records=[make_record(state=state, process=process) for process, state in enumerate(states)])
    (only,) = only_series().points
    assert (only.commit, only.dirty) == ("b" * 40, True)


BEFORE = {"gpu": {"driver": "570.1", "power_limit_w": 700.0, "ecc": True}, "packages": {"torch": "2.9"}}
AFTER = {"gpu": {"driver": "580.2", "power_limit_w": 500.0, "ecc": False}, "packages": {"torch": "2.10"}}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (
            (BEFORE, BEFORE, AFTER, AFTER),
            [(2, "driver 570.1 -> 580.2, power limit (W) 700 -> 500, ECC on -> off, torch 2.9 -> 2.10")],
        ),
        (({"packages": {"pyperf_suite": "1"}, "source": {"commit": "1"}}, {"packages": {"pyperf_suite": "2"}}), []),
        (({"gpu": {"driver": "1"}}, {"gpu": {}}, {"gpu": {"driver": "1"}}), []),
        (({"gpu": {"driver": "1"}}, {"gpu": {}}, {"gpu": {"driver": "2"}}), [(2, "driver 1 -> 2")]),
        (({"packages": {"triton": "3.7"}}, {"packages": {"triton": None}}), [(1, "triton 3.7 -> absent")]),
        (({"python": "3.11"}, {"packages": 3, "gpu": "none"}, {"python": "3.12"}), [(2, "Python 3.11 -> 3.12")]),
    ],
    ids=["all", "own version", "not known between", "changed between", "library gone", "strange state"],
)
def test_a_changed_driver_limit_or_library_is_a_break(states, expected):
    assert breaks(*states) == expected


def test_what_failed_has_no_figures_and_counts_are_below_two_to_the_62(write_run, make_record):
    failed = make_record(exact={"registers": 96}, case_id="b" * 16) | {"outcome": "failed", "reason": "because"}
    side = read_side(write_run(records=[failed, make_record(process=2**62 - 1)]))
    one = side.benchmarks["tile_wave", "b" * 16]
    assert side.notes == ()
    assert (one.exact, one.medians, one.low, one.high, one.failed) == ({}, (), 0.0, 0.0, 1)


def test_machine_code_breaks_with_its_compiler_and_not_with_the_driver_or_governor():
    before = {"gpu": {"driver": "1"}, "governors": ["powersave"], "kernel_compiler": "NVRTC 13.0"}
    after = {"gpu": {"driver": "2"}, "governors": ["performance"], "kernel_compiler": "NVRTC 13.1"}
    assert breaks(before, after, kind="static") == [(1, "kernel compiler NVRTC 13.0 -> NVRTC 13.1")]
