import subprocess

import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.regressions.pairs import builds
from pyperf_suite.regressions.pairs.builds import (
    Checkout,
    builds_folder,
    find_checkout,
    interpreter_arm,
    revision_arm,
)
from tests.core.repository import Repository

SETUP = "from setuptools import setup\nsetup(name='made-up', packages=['pyperf_suite'])\n"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A repository with three commits: version 1, version 2, which is checked out, and one that does not build."""
    monkeypatch.setenv("PYPERF_CACHE_DIR", str(tmp_path / "cache"))
    checkout = Repository(tmp_path / "checkout")
    checkout.write(**{".gitignore": "build\n"})
    for version in ("1", "2"):
        checkout.commit(
            f"v{version}", **{"setup.py": SETUP, "pyperf_suite/__init__.py": f"__version__ = '{version}'\n"}
        )
    checkout.commit(
        "broken",
        **{"setup.py": "print('compiling', flush=True)\nraise SystemExit('gemm.cpp:7: error: no semicolon')\n"},
    )
    checkout.git("checkout", "-q", "v2")
    return checkout


@pytest.fixture
def checkout(repository):
    return Checkout(repository.root)


def source_of(arm):
    return (arm.build / "pyperf_suite" / "__init__.py").read_text()


@pytest.mark.slow
def test_a_revision_is_built_once_as_it_was_committed_and_the_checkout_stays_as_it_was(
    repository, checkout, monkeypatch
):
    arm = revision_arm(checkout, "v1")
    assert (arm.failure, source_of(arm)) == ("", "__version__ = '1'\n")
    assert arm.commit == repository.git("rev-parse", "v1")
    assert arm.name == f"v1 ({arm.commit[:10]})"
    assert len(repository.git("worktree", "list").splitlines()) == 1
    assert repository.git("status", "--porcelain") == ""
    repository.git("checkout", "-q", "v1")
    monkeypatch.setattr(builds, "_make_build", lambda *_: pytest.fail("built again"))
    assert revision_arm(checkout, arm.commit[:12]).build == arm.build
    # A working tree without changes is its commit.
    assert (revision_arm(checkout, ".").build, revision_arm(checkout, ".").dirty) == (arm.build, False)


@pytest.mark.slow
def test_a_build_that_was_cut_off_is_made_anew(checkout):
    arm = revision_arm(checkout, "v1")
    (arm.build.parent / "done").unlink()
    (arm.build / "pyperf_suite" / "__init__.py").write_text("torn")
    assert source_of(revision_arm(checkout, "v1")) == "__version__ = '1'\n"


def test_a_revision_that_does_not_build_names_the_error_and_keeps_its_log(repository, checkout):
    arm = revision_arm(checkout, "broken")
    assert "gemm.cpp:7: error: no semicolon" in arm.failure
    assert str(arm.log) in arm.failure
    assert "compiling" in arm.log.read_text()
    assert len(repository.git("worktree", "list").splitlines()) == 1


@pytest.mark.slow
def test_the_working_tree_is_built_as_it_is_with_new_files_and_without_ignored_ones(checkout):
    (checkout.root / "pyperf_suite" / "__init__.py").write_text("__version__ = 'changed'\n")
    (checkout.root / "pyperf_suite" / "new.py").write_text("")
    arm = revision_arm(checkout, ".")
    assert arm.dirty
    assert "and changes" in arm.name
    assert source_of(arm) == "__version__ = 'changed'\n"
    assert (arm.build / "pyperf_suite" / "new.py").exists()
    (checkout.root / "pyperf_suite" / "__init__.py").write_text("__version__ = 'once more'\n")
    assert source_of(revision_arm(checkout, ".")) == "__version__ = 'once more'\n"


@pytest.mark.parametrize(
    "revision", ["--upload-pack=touch /tmp/x", "-", "no-such-branch", "v1; touch x", "$(touch x)", ""]
)
def test_what_is_no_revision_is_refused_in_one_sentence(checkout, revision):
    with pytest.raises(UserError, match="revision"):
        revision_arm(checkout, revision)


@pytest.mark.parametrize(
    ("variable", "place", "words"),
    [("PATH", "", "git, which is not installed"), ("PYPERF_CACHE_DIR", "file", "cannot be written")],
)
def test_without_git_or_a_folder_that_can_be_written_it_says_so(
    checkout, monkeypatch, tmp_path, variable, place, words
):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(variable, str(tmp_path / place))
    with pytest.raises(UserError, match=words):
        revision_arm(checkout, "v1")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["all builds", "this build"])
def test_a_build_in_a_folder_that_others_can_write_is_not_imported(checkout, which):
    arm = revision_arm(checkout, "HEAD")
    assert arm.build is not None
    (builds_folder() if which == "all builds" else arm.build.parent).chmod(0o777)
    with pytest.raises(UserError, match="can be written by other users"):
        revision_arm(checkout, "HEAD")


def test_an_interpreter_that_has_the_suite_is_an_arm_and_others_are_refused(tmp_path):
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho '[[3, 11, 0], {}]'\n")
    python.chmod(0o755)
    with pytest.raises(UserError, match=r"has no pyperf_suite: install it there"):
        interpreter_arm(python)
    with pytest.raises(UserError, match="does not run"):
        interpreter_arm(tmp_path / "absent")
    python.write_text("#!/bin/sh\n")
    with pytest.raises(UserError, match="no Python interpreter"):
        interpreter_arm(python)
    python.write_text('#!/bin/sh\necho \'[[3, 11, 0], {"pyperf_suite": "7"}]\'\n')
    arm = interpreter_arm(python)
    assert (arm.python, arm.build, arm.name) == (python, None, f"{python} (7)")
    assert arm.variables["PYTHONPATH"] == ""


def test_in_a_shallow_clone_it_says_how_to_get_older_commits(checkout, tmp_path):
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth", "1", checkout.root.as_uri(), shallow], check=True)
    with pytest.raises(UserError, match="git fetch --unshallow"):
        find_checkout(shallow).commit("HEAD~1")
