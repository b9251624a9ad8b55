"""Whatever bytes lie where a file of the suite should, they are read or refused in one sentence, and nothing hangs."""

from __future__ import annotations

import contextlib
import io
import json
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pyperf_suite.advise.model.config import read_model_config
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.devices import Device
from pyperf_suite.history.changes.confirm import find_case
from pyperf_suite.history.selfcheck.selfcheck import COMPARISONS, MANIFEST, open_selfcheck
from pyperf_suite.history.stored.foreign import read_foreign
from pyperf_suite.history.stored.index_file import NAME
from pyperf_suite.history.stored.journal_lines import read_lines
from pyperf_suite.history.stored.store import Store
from pyperf_suite.history.thresholds import load_thresholds
from pyperf_suite.laws import gemm_time, memory_bound_time
from pyperf_suite.laws.calibration import check_form, load_calibration, shipped_path
from pyperf_suite.runner.results import open_run, read_journal
from pyperf_suite.spec.axes import overrides_for, parse_overrides, replace_axes
from pyperf_suite.spec.discovery import all_probes

SEEDS = st.integers(0, 2**32)
# A hundred inputs an example: few examples do, unless a profile asks for other ones in each run.
SOME = settings(max_examples=2, phases=[Phase.generate]) if settings().derandomize else settings()
THRESHOLDS = b"""\
[tool.pyperf_suite.regressions]
margin = "1 %"
fail-on = "slower"

[tool.pyperf_suite.regressions.margins]
"tile_wave" = "3 %"
"matmul[native * dtype=int8*]" = 0.02
"""
CONFIG = (
    b'{"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 4, '
    b'"intermediate_size": 512, "vocab_size": 1000, "max_position_embeddings": 2048}'
)
FOREIGN = (
    b'{"datetime": "2026-01-01T00:00:00+00:00", "machine_info": {"cpu": {"brand_raw": "A CPU", "count": 8}}, '
    b'"benchmarks": [{"fullname": "a", "stats": {"median": 0.001, "data": [0.001, 0.002]}}]}'
)
AXES = (
    *(
        "tile=64x64x256,32x32x32",
        "workers=1,2",
        "size=1KiB..1GiB:4",
        "tile_wave.k=1024",
        "head_dim=64,80",
        "op=all_reduce",
    ),
    *("base=fprop:256x1024x1024", "schedule=data_parallel,stream_k", "checkpointing=every:2", "tensors=400x256x256"),
)
CPU = Device("cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("files")


@pytest.fixture(scope="module")
def journal_bytes(timed_record) -> bytes:
    """Three records as a run keeps them, the last one failed."""
    from pyperf_suite.laws.matmul.tiling import Schedule, Tile
    from pyperf_suite.runner.record import Case
    from pyperf_suite.workloads.matmul import MatmulParameters

    case = Case("matmul", MatmulParameters(64, 64, 64, Schedule("persistent", 1), Tile(32, 32, 32)), "native")
    began = "2026-01-01T00:00:00+00:00"
    records = [timed_record(case, 1e-3, position=number, started_at=began) for number in range(2)]
    records.append(timed_record(case, 1e-3, outcome="failed", reason="a fuse blew", metrics={}, started_at=began))
    return b"".join(json.dumps(record.to_json()).encode() + b"\n" for record in records)


@given(seed=SEEDS)
@SOME
@pytest.mark.filterwarnings("ignore::pyperf_suite.errors.DamagedJournal")
def test_any_journal_is_read_or_refused(each_spoiled, place, journal_bytes, seed):
    path = place / "records.jsonl"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        lines = list(read_lines(io.BytesIO(content), "a-machine"))
        assert sum(len(str(line.why)) for line in lines) < 1000 * (len(lines) + 1)
        with contextlib.suppress(UserError):
            find_case(path, "0123456789abcdef")
        read_journal(path)

    each_spoiled(seed, (journal_bytes,), read, (UserError,))


@given(seed=SEEDS)
@SOME
def test_any_manifest_is_read_or_refused(each_spoiled, place, seed):
    good = json.dumps({"run_id": "x", "plan_id": "0" * 16, "probes": ["a"], "profile": "quick", "cases": 3}).encode()

    def read(content: bytes) -> None:
        (place / "run.json").write_bytes(content)
        assert "plan_id" in open_run(place).manifest

    each_spoiled(seed, (good,), read, (UserError,))


@given(seed=SEEDS)
@SOME
def test_any_selfcheck_is_read_or_refused(each_spoiled, place, seed):
    manifest = json.dumps({"schema_version": 1, "shifts": [0.0], "seed": 0}).encode()
    line = b'{"shift": 0.0, "number": 1, "probe": "a", "case_id": "b", "label": "c", "verdict": "equivalent", '
    line += b'"ratio": 1.0, "seconds": 1.0, "log_ratios": [0.1], "started_at": "2026-01-01"}\n'

    def read(content: bytes) -> None:
        (place / MANIFEST).write_bytes(content if content.startswith(b'{"sch') else manifest)
        (place / COMPARISONS).write_bytes(content)
        open_selfcheck(place).false_alarms  # noqa: B018 - a property that reckons

    each_spoiled(seed, (manifest, line * 2), read, (UserError,))


@pytest.mark.parametrize(
    ("name", "good", "reader"),
    [
        ("pyproject.toml", THRESHOLDS, lambda path: load_thresholds(path.parent)),
        ("config.json", CONFIG, read_model_config),
        ("foreign.json", FOREIGN, read_foreign),
    ],
)
@given(seed=SEEDS)
@SOME
def test_any_bytes_of_other_files_are_read_or_refused(each_spoiled, place, name, good, reader, seed):
    def read(content: bytes) -> Any:
        (place / name).write_bytes(content)
        return reader(place / name)

    each_spoiled(seed, (good,), read, (UserError,))


@given(seed=SEEDS)
@SOME
def test_any_axis_that_a_person_writes_is_taken_or_refused(each_spoiled, seed):
    axes = {probe.name: probe.axes("quick", CPU) for probe in all_probes() if probe.name != "topology"}

    def read(text: str) -> None:
        overrides = parse_overrides([text])
        for name, own in axes.items():
            with contextlib.suppress(UserError):
                replace_axes(own, overrides_for(name, overrides))

    each_spoiled(seed, AXES, read, (UserError,))


def saved(header: Any, arrays: dict[str, bytes]) -> io.BytesIO:
    """A calibration's file, whole as an archive whatever is in it."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, content in arrays.items():
            archive.writestr(name, content)
        archive.writestr("header.json", json.dumps(header))
    file.seek(0)
    return file


@given(seed=SEEDS)
@SOME
def test_any_calibration_is_used_or_refused(each_spoiled, place, seed):
    with zipfile.ZipFile(shipped_path("H200 SXM")) as shipped:
        header = json.loads(shipped.read("header.json"))
        header["blocks"] = {"memory": header["blocks"]["memory"]}
        arrays = {name: shipped.read(name) for name in shipped.namelist() if name.startswith("memory/")}

    def use(calibration: Any) -> None:
        check_form(calibration, place)
        assert np.all(memory_bound_time(calibration, np.array([1, 10**6, 10**10])) > 0)
        assert np.all(gemm_time(calibration, np.array([1, 4096]), 4096, 4096) > 0)

    def read_header(spoiled: Any) -> None:
        use(load_calibration(saved(spoiled, arrays)))

    def read_array(content: bytes) -> None:
        name = list(arrays)[len(content) % len(arrays)]
        use(load_calibration(saved(header, arrays | {name: content})))

    def read_file(content: bytes) -> None:
        (place / "own.npz").write_bytes(content)
        use(load_calibration(place / "own.npz"))

    each_spoiled(seed, (header,), read_header, (UserError,))
    each_spoiled(seed, tuple(arrays.values()), read_array, (UserError,))
    each_spoiled(seed, (saved(header, arrays).getvalue(),), read_file, (UserError,))


@given(seed=SEEDS)
@(settings(max_examples=1, phases=[Phase.generate]) if settings().derandomize else settings())
def test_an_index_of_any_bytes_is_made_anew(each_spoiled, place, journal_bytes, seed):
    results = place / "results"
    run = results / "a-machine" / "20260101T000000Z-0001"
    run.mkdir(parents=True, exist_ok=True)
    (run / "records.jsonl").write_bytes(journal_bytes)
    index = results / NAME
    index.unlink(missing_ok=True)
    with Store(results) as store:
        store.update()
    good = index.read_bytes()

    def read(content: bytes) -> None:
        for left in results.glob(f"{NAME}*"):
            left.unlink()
        index.write_bytes(content)
        with Store(results) as store:
            store.update()
            for benchmark in store.benchmarks():
                store.series(benchmark)
            store.runs(), store.holdings(), store.damaged()

    each_spoiled(seed, (good,), read, (UserError,))


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE conditions SET state = '{'",
        "DELETE FROM conditions",
        "UPDATE observations SET started_at = 7",
        "UPDATE files SET damage = 'x'",
        "DROP TABLE observations",
    ],
)
def test_an_index_whose_rows_are_damaged_is_made_anew(tmp_path, journal_bytes, damage):
    run = tmp_path / "a-machine" / "20260101T000000Z-0001"
    run.mkdir(parents=True)
    (run / "records.jsonl").write_bytes(journal_bytes)
    with Store(tmp_path) as store:
        store.update()
    with contextlib.closing(sqlite3.connect(tmp_path / NAME)) as connection, connection:
        connection.execute(damage)
    with Store(tmp_path) as store:
        store.update()
        (benchmark,) = store.benchmarks()
        assert [point.value for point in store.series(benchmark).points] == [1e-3]
