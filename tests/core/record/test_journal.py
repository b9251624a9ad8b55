import json
import os
import re
import warnings
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyperf_suite.errors import DamagedJournal, UserError
from pyperf_suite.hardware.machine import identity
from pyperf_suite.record.journal import (
    Journal,
    KeptRecords,
    placed_records,
    read_journal,
    require_whole,
    sealed,
    sharing_machines,
)
from pyperf_suite.record.record import Record
from pyperf_suite.regressions.stored.store import find_run_folder
from pyperf_suite.runner.results import create_run, find_run, read_run
from tests import records as made_up


def a_record(position: int, reason: str = "") -> Record:
    outcome = "failed" if reason else "ok"
    return made_up.a_record(made_up.SMALL, position=position, outcome=outcome, reason=reason)


def write(path: Path, records: list[Record]) -> None:
    with Journal(path) as journal:
        for record in records:
            journal.append(record)


# Newlines of every kind in a reason must not look like the end of a record.
reasons = st.lists(st.text(st.characters(exclude_categories=("Cs",)), max_size=20), min_size=1, max_size=4)


@given(reasons)
@settings(max_examples=60, deadline=None)
def test_records_come_back_as_they_were_written(tmp_path_factory, texts):
    records = [a_record(position, text) for position, text in enumerate(texts)]
    path = tmp_path_factory.mktemp("journal") / "records.jsonl"
    write(path, records)
    assert read_journal(path) == records


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
def test_cut_at_every_byte_all_complete_records_come_back_and_writing_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)  # test_power_cut.py is about what is on the disk
    path = tmp_path / "records.jsonl"
    records = [a_record(position, "a\u2028b\n" * position) for position in range(3)]
    write(path, records)
    whole = path.read_bytes()
    ends = [0] + [index for index, byte in enumerate(whole) if byte == ord("\n")]
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        # A record is complete once its last brace is there, with or without the newline.
        complete = sum(cut >= end for end in ends[1:])
        assert read_journal(path) == records[:complete], cut
        write(path, [a_record(99)])
        assert read_journal(path) == [*records[:complete], a_record(99)], cut


def test_a_torn_last_line_is_dropped_with_a_warning_and_set_aside_not_lost(tmp_path):
    path = tmp_path / "records.jsonl"
    write(path, [a_record(0)])
    line = path.read_bytes()
    path.write_bytes(line + line[:40])
    with pytest.warns(DamagedJournal, match="torn"):
        assert len(read_journal(path)) == 1
    with pytest.warns(DamagedJournal, match="set aside"):
        write(path, [a_record(1)])
    assert (tmp_path / "records.jsonl.torn").read_bytes().startswith(line[:40])
    assert len(read_journal(path)) == 2


def test_a_record_of_another_schema_stops_the_reader_and_the_file_stays_as_it_is(tmp_path):
    path = tmp_path / "records.jsonl"
    write(path, [a_record(0)])
    content = path.read_bytes() + b'{"schema_version": 99}\n'
    path.write_bytes(content)
    with pytest.raises(UserError, match="line 2"):
        read_journal(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "line", ["[]", "7", "not json", '{"schema_version": 1}', "[" * 100_000, "\xff\xfe", "\0" * 500]
)
def test_a_damaged_line_is_named_and_costs_no_other_record(tmp_path, line):
    path = tmp_path / "records.jsonl"
    write(path, [a_record(0), a_record(1)])
    first, second = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + line.encode("latin-1") + b"\n" + second)
    with pytest.warns(DamagedJournal, match="line 2") as warned:
        assert read_journal(path) == [a_record(0), a_record(1)]
    assert [each.filename for each in warned] == [__file__]


def test_every_byte_of_a_record_is_guarded(tmp_path):
    path = tmp_path / "records.jsonl"
    write(path, [a_record(0), a_record(1)])
    whole = path.read_bytes()
    for at in range(whole.index(b"\n")):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DamagedJournal)
            found = read_journal(path)
        # Only where the seal itself is no seal any more may the record still count, and then it is as it was.
        assert found in ([a_record(1)], [a_record(0), a_record(1)]), at


def test_a_journal_of_before_records_were_sealed_is_read_as_ever_and_written_on(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(a_record(0).to_json()) + "\n")
    write(path, [a_record(1)])
    assert read_journal(path) == [a_record(0), a_record(1)]
    # A seal stands at the end: a member of that name elsewhere is none.
    require_whole(b'{"a":1,"sealed":"3:00000000","b":2}\n')
    with pytest.raises(ValueError, match="its checksum differs"):
        require_whole(b'{"a":1,"sealed":"3:00000000"}\n')


def test_what_is_no_file_is_refused_without_waiting(tmp_path):
    path = tmp_path / "records.jsonl"
    os.mkfifo(path)
    with pytest.raises(UserError, match="pipe"):
        read_journal(path)
    with pytest.raises(UserError, match="pipe"):
        Journal(path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match="device"):
        read_journal(path)
    with pytest.raises(UserError, match="link"):
        Journal(path)


def test_the_seconds_of_a_trial_are_read_by_their_earlier_name_too():
    stored = replace(a_record(0), trial_s=2.5).to_json()
    earlier = {"visit_s" if name == "trial_s" else name: value for name, value in stored.items()}
    assert Record.from_json(earlier) == Record.from_json(stored)


@pytest.mark.parametrize("field", ["schema_version", "kind", "outcome"])
def test_a_record_of_another_kind_is_told_of_in_a_sentence_however_long_its_words(field):
    with pytest.raises(UserError) as refused:
        Record.from_json(a_record(0).to_json() | {field: "a" * 10_000})
    assert len(str(refused.value)) < 200


TIME = a_record(0).to_json()["metrics"]["time"]


@pytest.mark.parametrize(
    "wrong",
    [
        *({field: value} for field in ("metrics", "work", "quality") for value in ({}, [], None, 3)),
        {"probe": []},
        {"case": []},
        {"case_id": {}},
        {"process": "0"},
        {"process": True},
        {"state": None},
        {"trial_s": float("nan")},
        {"work": {"flop": "7"}},
        *(
            {"quality": {"converged": True, "discarded": discarded}}
            for discarded in ([7], [[0]], [[0, "x", 1]], "no", [[0, "x"], 7])
        ),
        {"quality": {"converged": True, "disturbances": "none"}},
        *(
            {"quality": {"converged": True, "disturbances": {"drift": drift}}}
            for drift in ("0.1", 1e300, 100, -0.1, float("nan"))
        ),
        {"quality": {"converged": True, "disturbances": {"clean_share": None}}},
        *({"metrics": {"time": {**TIME, "value": value}}} for value in (10**400, 0, True, "1", 1e300, -1e300)),
        *({"metrics": {"time": {**TIME, name: 0}}} for name in ("low", "high")),
        *(
            {"metrics": {"time": {**TIME, "samples": samples}}}
            for samples in (
                *([0.1, 10**400], ["x"], "x", [[1.0], 2.0], [["x"]], [True, 0.1]),
                *([1e300], [-1e300, 1.0], [float("nan"), 1.0], [[1e300]]),
            )
        ),
        {"metrics": {"time": {**TIME, "unit": None}}},
    ],
)
def test_a_record_without_what_readers_use_or_with_what_they_stumble_over_is_refused(wrong):
    with pytest.raises(UserError, match="record"):
        Record.from_json(a_record(0).to_json() | wrong)


@pytest.mark.parametrize(
    "fields",
    [
        {"quality": {"converged": False, "discarded": [[0, "throttled"]], "disturbances": {"drift": 99.9}}},
        {"quality": {"converged": True, "discarded": [], "disturbances": {"clean_share": 0, "drift": 0.0}}},
        *({"metrics": {"time": {**TIME, "samples": each}}} for each in ([], [1, 2], [0.5, 9e299], [[0.5, 1], [-2.0]])),
        {"kind": "static", "metrics": {}, "work": {}, "quality": {}},
        {"outcome": "failed", "metrics": {}, "work": {}, "quality": {}},
    ],
)
def test_a_record_of_several_ranks_with_samples_left_out_or_without_a_time_is_read_as_it_is(fields):
    stored = a_record(0).to_json() | fields
    assert Record.from_json(stored).to_json() == stored


def test_two_writers_of_one_run_and_a_folder_that_cannot_be_written_are_refused(tmp_path):
    path = tmp_path / "records.jsonl"
    with Journal(path), pytest.raises(UserError, match="Another process is writing"):
        Journal(path)
    with Journal(path):
        pass  # the first one is done
    with pytest.raises(UserError, match="cannot be written"):
        Journal(tmp_path / "absent" / "records.jsonl")


def test_a_record_is_sealed_with_its_length_and_checksum_and_kept_by_the_byte_at_which_it_begins(
    tmp_path,
):
    path, records = tmp_path / "records.jsonl", [a_record(position) for position in range(3)]
    lines = [sealed(record) for record in records]
    content = json.dumps(records[0].to_json(), separators=(",", ":")).encode()
    assert lines[0] == content[:-1] + b',"sealed":"%d:%08x"}\n' % (len(content), zlib.crc32(content))
    with Journal(path) as journal:
        starts = [journal.append(record) for record in records]
    assert starts == [0, len(lines[0]), len(lines[0] + lines[1])]
    assert [start for start, _ in placed_records(path)] == starts
    kept = KeptRecords(path, starts[:2])
    assert (kept.add(starts[2]), len(kept), list(kept)) == (2, 3, records)
    assert (kept[1], kept[-1], kept[1:]) == (records[1], records[2], records[1:])
    assert list(KeptRecords(tmp_path / "absent")) == []
    # The state, the same in all records of one machine, is held once.
    first, *others = kept
    assert all(each.state is first.state and each.identity is first.identity for each in others)
    [(_, other)] = [*sharing_machines([(0, first), (1, replace(first, state={"another": 1}))])][1:]
    assert (other.state, other.identity is first.identity) == ({"another": 1}, True)


def test_a_run_has_a_folder_by_its_time_and_a_manifest_of_what_was_asked(tmp_path):
    machine, plan = identity(made_up.PLAN.device), replace(made_up.PLAN, seed=3, requested=("m=64",))
    run = create_run(tmp_path, machine, plan)
    assert re.fullmatch(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{4}", run.run_id)
    manifest = json.loads((run.path / "run.json").read_text())
    assert re.fullmatch(r"[-0-9]{10}T[:0-9]{8}\+00:00", manifest.pop("started_at"))
    assert manifest == {
        "run_id": run.run_id, "plan_id": plan.plan_id, "probes": ["tile_wave"], "profile": "quick", "processes": 1,
        "device": "cpu", "seed": 3, "asked": ["m=64"], "cases": 1, "identity": dict(machine.fields),
    }  # fmt: skip
    assert (read_run(run.path).manifest, run.records(), run.path.parent.name) == (run.manifest, [], machine.slug)
    assert create_run(tmp_path, machine, plan, "mine").run_id == "mine"
    assert find_run(tmp_path, machine, plan).run_id == "mine", (
        "the last by name, and damaged neighbours are passed over"
    )
    for name in ("a/b", "/tmp/x", "tab\t"):
        with pytest.raises(UserError, match="cannot name a run"):
            create_run(tmp_path, machine, plan, name)
    assert find_run(tmp_path, machine, plan, "mine").run_id == "mine"
    long = replace(plan, requested=("m=64",) * 10_000)
    assert len(read_run(create_run(tmp_path, machine, long, "long").path).manifest["asked"]) == 10_000
    other = replace(plan, seed=4)
    with pytest.raises(UserError, match="Its options were: tile_wave -a m=64 --profile quick"):
        find_run(tmp_path, machine, other, "mine")
    for text, words in (("{", "does not hold JSON"), ("[]", "names no plan_id"), ("{}", "names no plan_id")):
        (run.path / "run.json").write_text(text)
        with pytest.raises(UserError, match=words):
            read_run(run.path)
    assert find_run(tmp_path, machine, plan).run_id == "mine"


@pytest.mark.parametrize("last", ["20991231T235959Z", "20990228T010203Z"])
def test_a_run_is_called_later_than_those_before_it_also_where_the_clock_was_set_back(tmp_path, last):
    machine, plan = identity(made_up.PLAN.device), made_up.PLAN
    made_up.a_run(tmp_path, f"{last}-ffff")
    (tmp_path / machine.slug / "99999999T999999Z-0000.txt").touch()
    made = [made_up.a_run(tmp_path) for _ in range(3)]
    assert made == sorted(made)
    assert made[0].name[:4] in ("2099", "2100")
    assert find_run(tmp_path, machine, plan).path == made[-1]
    assert find_run_folder("latest", tmp_path) == made[-1]
    assert find_run_folder("latest~3", tmp_path).name == f"{last}-ffff"


@pytest.mark.parametrize("cut", [1, 2])
def test_a_last_line_that_lacks_its_newline_alone_is_whole_and_one_that_lacks_more_is_not(tmp_path, cut):
    path = tmp_path / "records.jsonl"
    write(path, [a_record(0), a_record(1)])
    path.write_bytes(path.read_bytes()[:-cut])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        write(path, [a_record(2)])
    assert (len(warned), (tmp_path / "records.jsonl.torn").exists()) == (cut - 1, cut == 2)
    assert [record.position for record in read_journal(path)] == ([0, 1, 2] if cut == 1 else [0, 2])
