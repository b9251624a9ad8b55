import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from pyperf_suite.process import system

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"])
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_process_is_told_from_a_later_one_with_its_number(sleeper):
    start = system.start_of(sleeper.pid)
    assert system.is_alive(sleeper.pid, start)
    assert not system.is_alive(sleeper.pid, start - 1)
    assert system.parent_of(sleeper.pid) == os.getpid()


def test_a_stopped_process_is_alive_and_a_zombie_is_not(sleeper):
    psutil.Process(sleeper.pid).suspend()
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_STOPPED:
        pass
    assert system.state_of(sleeper.pid) == "T"
    start = system.start_of(sleeper.pid)
    sleeper.kill()
    while psutil.Process(sleeper.pid).status() != psutil.STATUS_ZOMBIE:
        pass
    assert not system.is_alive(sleeper.pid, start)
    sleeper.wait()
    assert (system.state_of(sleeper.pid), system.start_of(sleeper.pid)) == ("", 0)


def test_folders_of_dead_owners_are_swept_and_those_of_living_ones_stay(temporary, sleeper):
    name = system.owned_name("worker", sleeper.pid)
    (temporary / f"{name}abc" / "deep").mkdir(parents=True)
    (temporary / f"{name}abc" / "deep" / "file").write_text("much")
    living = system.OwnedFolder("run")
    system.sweep()
    assert {path.name for path in temporary.iterdir()} == {f"{name}abc", Path(living.name).name}
    sleeper.kill()
    sleeper.wait()
    system.sweep()
    assert [path.name for path in temporary.iterdir()] == [Path(living.name).name]
    living.cleanup()
    assert not list(temporary.iterdir())


@pytest.mark.parametrize("ending", ["sys.exit()", "own.cleanup()", "del own"])
def test_a_copy_of_a_process_leaves_its_folders_to_it(tmp_path, ending):
    """Code of a user's that forks and ends the copy in order took away where the original's inputs lie."""
    code = f"""
import os, sys, tempfile
from pathlib import Path
from pyperf_suite.process.system import OwnedFolder
tempfile.tempdir = {str(tmp_path)!r}
own = OwnedFolder("kernel")
copy = os.fork()
if not copy:
    {ending}
    sys.exit()
os.waitpid(copy, 0)
print(Path(own.name).is_dir())
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "True\n"
    assert not list(tmp_path.iterdir())


def test_a_process_without_descriptors_left_takes_nobody_for_dead(temporary):
    """A sweep that cannot read /proc would remove the folders of running processes."""
    living = system.OwnedFolder("run")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        alive = system.is_alive(os.getpid(), 1), system.is_alive(2**22 + 1, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert alive == (True, True)
    assert not system.is_alive(2**22 + 1, 1)
    living.cleanup()


def test_sweeping_follows_no_link_and_takes_nothing_with_another_name(temporary, sleeper, tmp_path_factory):
    precious = tmp_path_factory.mktemp("precious") / "file"
    precious.write_text("of somebody")
    dead = system.owned_name("run", sleeper.pid)
    sleeper.kill()
    sleeper.wait()
    (temporary / f"{dead}link").symlink_to(precious.parent)
    (temporary / f"{dead}folder").mkdir()
    (temporary / f"{dead}folder" / "link").symlink_to(precious.parent)
    (temporary / f"{dead}file").write_text("")
    (temporary / "pyperf_run_0badcafe_1_1_other_machine").mkdir()
    (temporary / "pyperf_worker_something").mkdir()
    system.sweep()
    assert precious.read_text() == "of somebody"
    left = {path.name.removeprefix(dead) for path in temporary.iterdir()}
    assert left == {"link", "file", "pyperf_run_0badcafe_1_1_other_machine", "pyperf_worker_something"}
