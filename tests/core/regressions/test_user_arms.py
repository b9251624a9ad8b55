import dataclasses
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.regressions.pairs import builds, user_arms
from pyperf_suite.regressions.pairs.arms import parse_requirements
from pyperf_suite.regressions.pairs.user_arms import notes_on, side_of
from tests.core.repository import Repository

EXTENSION = """
#include <Python.h>
static PyObject *version(PyObject *self, PyObject *none) { return PyLong_FromLong(VERSION); }
static PyMethodDef methods[] = {{"version", version, METH_NOARGS, ""}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native", "", -1, methods};
PyMODINIT_FUNC PyInit_native(void) { return PyModule_Create(&module); }
"""

SETUP_WITH_EXTENSION = """
from setuptools import Extension, setup
setup(name="made-up", version="1", packages=["made_up"], ext_modules=[Extension("made_up.native", ["native.c"])])
"""


class Bench(Repository):
    def arm(self, requested: str, *benches: str):
        return side_of(requested, self.root, benches)()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(user_arms.shutil, "which", lambda _: None)  # pip, wherever this test runs
    return Bench(tmp_path / "repository")


def make_wheel(folder, version):
    with zipfile.ZipFile(folder / f"made_up-{version}-py3-none-any.whl", "w") as wheel:
        about = f"made_up-{version}.dist-info"
        wheel.writestr("made_up.py", f"version = {version}\n")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: made-up\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.fixture
def index(repository, tmp_path, monkeypatch):
    """A folder of wheels in which pip finds two versions of a package, and nothing else anywhere."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    for version in ("1", "2"):
        make_wheel(tmp_path, version)
    return repository


def asked_of(arm, expression):
    """Evaluate an expression where the arm's kernels run."""
    program = f"import sys; sys.path[:0] = {arm.environment[user_arms.PATH_VARIABLE].split(os.pathsep)}; import made_up"
    done = subprocess.run(
        [arm.environment[user_arms.PYTHON_VARIABLE], "-c", f"{program}\nprint({expression})"],
        capture_output=True, text=True, cwd="/",
    )  # fmt: skip
    return done.stdout.strip() or done.stderr


def bench_of(arm, name):
    return (Path(arm.environment[user_arms.ROOT_VARIABLE]) / name).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["made_up/__init__.py", "src/made_up/__init__.py", "made_up.py", "src/made_up.py"])
def test_a_revision_of_python_files_is_imported_as_it_was_committed(repository, place):
    repository.commit("v1", **{place: "version = 1\n", "bench.py": "one\n"})
    repository.commit("v2", **{place: "version = 2\n", "bench.py": "two\n"})
    repository.write(**{place: "version = 3\n"})
    arms = [repository.arm(requested, "bench.py") for requested in ("v1", "v2", ".")]
    assert [asked_of(arm, "made_up.version") for arm in arms] == ["1", "2", "3"]
    assert [bench_of(arm, "bench.py") for arm in arms] == ["one\n", "two\n", "two\n"]
    assert [arm.dirty for arm in arms] == [False, False, True]
    assert arms[0].commit == repository.git("rev-parse", "v1")
    assert len(repository.git("worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_a_setup_py_with_an_extension_is_built_for_each_revision_once(repository, monkeypatch):
    files = {"setup.py": SETUP_WITH_EXTENSION, "made_up/__init__.py": "", "bench.py": ""}
    repository.commit("v1", **files, **{"native.c": EXTENSION.replace("VERSION", "1")})
    repository.commit("v2", **{"native.c": EXTENSION.replace("VERSION", "2")})
    arms = [repository.arm(requested, "bench.py") for requested in ("v1", "v2")]
    assert [arm.failure for arm in arms] == ["", ""]
    native = "__import__('made_up.native').native.version()"
    assert [asked_of(arm, native) for arm in arms] == ["1", "2"]
    assert not (Path(arms[0].environment[user_arms.ROOT_VARIABLE]) / "build").exists(), (
        "what was built is no part of it"
    )
    monkeypatch.setattr(builds, "logged", lambda *_: pytest.fail("built again"))
    assert repository.arm("v1", "bench.py").environment == arms[0].environment


@pytest.mark.slow
def test_requirements_are_installed_into_an_environment_that_is_kept(index, monkeypatch):
    arm = index.arm("made-up==1")
    assert (arm.failure, arm.name, asked_of(arm, "made_up.version")) == ("", "made-up==1", "1")
    assert arm.to_json()["software"]["packages"]["made-up"] == "1"
    monkeypatch.setattr(builds, "logged", lambda *_: pytest.fail("installed again"))
    assert index.arm("made-up==1").environment == arm.environment


@pytest.mark.slow
def test_requirements_that_cannot_be_installed_are_an_arm_with_a_reason_and_a_log(index):
    arm = index.arm("made-up==3")
    assert arm.failure.startswith("made-up==3 cannot be prepared: ERROR: No matching distribution found for made-up==3")
    assert str(arm.log) in arm.failure
    assert arm.log.exists()


@pytest.mark.parametrize(
    ("text", "requirements"),
    [
        ("numpy==1.26.4", ("numpy==1.26.4",)),
        ("numpy==1.26.4 scipy==1.11.4", ("numpy==1.26.4", "scipy==1.11.4")),
        ("numpy>=1.26,<2 scipy", ("numpy>=1.26,<2", "scipy")),
        ("torch[opt]~=2.5 numpy==2.0.0rc1", ("torch[opt]~=2.5", "numpy==2.0.0rc1")),
        ("v1.26.4", None),
        ("schedule=stream_k", None),
        ("HEAD~1", None),
    ],
)
def test_a_word_that_compares_versions_is_a_list_of_requirements(text, requirements):
    assert parse_requirements(text) == requirements


@pytest.mark.slow
def test_a_bench_file_that_a_revision_lacks_is_borrowed_and_that_is_said(repository):
    repository.commit("v1", **{"made_up.py": "version = 1\n"})
    repository.commit("v2", **{"made_up.py": "version = 2\n", "benches/bench.py": "two\n", "benches/helper.py": "x\n"})
    repository.write(**{"benches/bench.py": "present\n"})
    old, new = repository.arm("v1", "benches/bench.py"), repository.arm("v2", "benches/bench.py")
    assert bench_of(old, "benches/bench.py") == "present\n"
    assert bench_of(old, "benches/helper.py") == "x\n"
    assert not (Path(old.environment[user_arms.ROOT_VARIABLE]) / "made_up.py").exists()
    assert asked_of(old, "made_up.version") == "1"
    assert bench_of(new, "benches/bench.py") == "two\n"
    assert (old.borrowed, new.borrowed) == (("benches/bench.py",), ())
    lacks, differs = notes_on(old, new, ["benches/bench.py"])
    assert "benches/bench.py is not in v1" in lacks
    assert "differs between the sides" in differs


@pytest.mark.parametrize(("changed", "same"), [("", True), ("made_up.py", False), ("README", False)])
def test_sides_of_the_same_files_and_packages_are_said_to_be_the_same(repository, changed, same):
    repository.commit("v1", **{"made_up.py": "version = 1\n", "README": "first\n"})
    repository.commit("v2", **{"made_up.py": "version = 2\n"})
    repository.commit("back", **{"made_up.py": "version = 1\n"})
    if changed:
        repository.write(**{changed: "version = 3\n"})
    arms = [repository.arm("v1"), repository.arm("." if changed else "back")]
    assert asked_of(arms[0], "made_up.version") == "1"  # an import leaves files that are no revision's
    assert any("the same" in note for note in notes_on(*arms, [])) is same
    assert not notes_on(arms[0], repository.arm("v2"), [])
    assert not notes_on(arms[0], dataclasses.replace(arms[0], software={"python": "3.9.0"}), [])
    assert not notes_on(arms[0], dataclasses.replace(arms[0], failure="It does not build."), [])


def test_an_interpreter_needs_nothing_but_to_be_python_and_new_enough(repository, tmp_path):
    arm = repository.arm(sys.executable)
    assert arm.environment[user_arms.PYTHON_VARIABLE] == sys.executable
    assert arm.software["python"] == ".".join(map(str, sys.version_info[:3]))
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '[[3, 8, 1], {}]'\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=r"Python 3\.8\.1, and kernels run in 3\.9 or newer"):
        repository.arm(str(python))
    python.write_text("#!/bin/sh\necho what >&2\nexit 1\n")
    with pytest.raises(UserError, match=r"no Python interpreter .*what"):
        repository.arm(str(python))
    python.chmod(0o644)
    with pytest.raises(UserError, match="does not run"):
        repository.arm(str(python))


def test_without_git_the_present_files_are_an_arm_and_revisions_are_refused(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    folder = tmp_path / "no checkout"
    folder.mkdir()
    assert side_of(".", folder, ["bench.py"])().environment[user_arms.ROOT_VARIABLE] == str(folder)
    with pytest.raises(UserError, match="lies in no git checkout"):
        side_of("v1", folder, ["bench.py"])
