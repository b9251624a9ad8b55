"""Copies and reads that check every byte, leave nothing behind, and say what a machine cannot do."""

from __future__ import annotations

import ctypes
import os
from types import SimpleNamespace

import psutil
import pytest

from pyperf_suite.errors import Unsupported
from pyperf_suite.hardware.devices import Device
from pyperf_suite.measure.sampling import SteadyRule, StopRule
from pyperf_suite.record.case import Case
from pyperf_suite.runner.measuring import measure_case
from pyperf_suite.runner.profiles import Effort
from pyperf_suite.workloads.training import transfer
from pyperf_suite.workloads.training.transfer import Transfer, TransferParameters
from pyperf_suite.workloads.workload import ExecutionContext

CPU = Device("cpu")
WAYS = ("memcpy", "torch", "disk_cached")


def prepared(way: str, size_bytes: int, **settings):
    return Transfer().implementation(way).prepare(TransferParameters(size_bytes, **settings), ExecutionContext(CPU))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size_bytes", [1, 4095, 65536, 5 << 20])
def test_every_byte_arrives(way, size_bytes, tmp_path, monkeypatch):
    if way == "torch":
        pytest.importorskip("torch")
    monkeypatch.setattr(transfer, "FILE_BYTES", 1 << 16)
    steps = prepared(way, size_bytes, **({"folder": str(tmp_path)} if way == "disk_cached" else {}))
    try:
        for _ in range(2):
            checked = steps.check()
            assert checked.wrong == 0, checked.first
            assert checked.compared >= size_bytes
    finally:
        steps.close()


def test_slots_of_small_copies_have_the_size_of_one():
    steps = prepared("memcpy", 1 << 20)
    assert [slot.size for slot in steps.cut(steps.target)] == [1 << 20] * steps.sets


def test_a_copy_that_loses_a_byte_only_while_it_is_timed_is_found(monkeypatch):
    whole, calls = ctypes.memmove, []
    slots = prepared("memcpy", 100_000).sets

    def losing(target, source, count):
        calls.append(1)
        whole(target, source, count - (len(calls) > 2 * slots))

    monkeypatch.setattr(ctypes, "memmove", losing)
    effort = Effort(SteadyRule(min_time_s=0.0, time_cap_s=0.05), StopRule(time_cap_s=0.2))
    answer = measure_case(Case("transfer", TransferParameters(size_bytes=100_000), "memcpy"), effort, Device("cpu"))
    assert answer["outcome"] == "failed"
    assert answer["reason"].startswith("Wrong result while it was timed")
    assert "byte 99999 of slot" in answer["reason"]


def test_a_read_from_elsewhere_in_the_file_is_found(tmp_path, monkeypatch):
    whole = os.preadv
    steps = prepared("disk_cached", 4096, folder=str(tmp_path))
    monkeypatch.setattr(os, "preadv", lambda file, rooms, offset: whole(file, rooms, 0))
    checked = steps.check()
    steps.close()
    assert checked.wrong > 0
    assert "of the file from" in checked.first


def test_reads_that_come_in_parts_are_put_together(tmp_path, monkeypatch):
    whole = os.preadv
    steps = prepared("disk_cached", 10_000, folder=str(tmp_path))
    monkeypatch.setattr(os, "preadv", lambda file, rooms, offset: whole(file, [rooms[0][:3000]], offset))
    assert steps.check().wrong == 0
    steps.close()


def test_a_file_has_no_name_from_the_first_byte_on(tmp_path):
    steps = prepared("disk_cached", 4096, folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert steps.check().wrong == 0
    steps.close()
    steps.close()


@pytest.mark.parametrize("kind", ["tmpfs", "ramfs"])
def test_memory_in_the_guise_of_a_disk_is_refused(kind, tmp_path, monkeypatch):
    mounted = [SimpleNamespace(mountpoint="/", fstype="ext4"), SimpleNamespace(mountpoint=str(tmp_path), fstype=kind)]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounted)  # noqa: A006 - psutil's name
    with pytest.raises(Unsupported, match=f"{kind}, which is memory"):
        prepared("disk_direct", 4096, folder=str(tmp_path))


def test_a_disk_without_room_is_said_to_be_one(tmp_path, monkeypatch):
    def full(file):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(Unsupported, match=r"bytes can be written in .*: No space left"):
        prepared("disk_cached", 4096, folder=str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["host_to_device", "device_to_host"])
@pytest.mark.parametrize("pinned", [False, True])
def test_every_byte_crosses_the_bus(way, pinned):
    parameters = TransferParameters(1 << 20, pinned=pinned)
    checked = Transfer().implementation(way).prepare(parameters, ExecutionContext(Device("cuda"))).check()
    assert checked.wrong == 0, checked.first
    assert checked.compared >= 1 << 20
