import re
import signal
import time

import pytest

pytestmark = pytest.mark.slow


def test_every_rank_gets_every_answer_in_order_and_rank_0s_word(start_ranks):
    ranks = start_ranks(
        """
        for step in range(30):
            answers = group.gather("count", [group.rank, step], 20)
            assert answers == [[rank, step] for rank in range(3)], answers
            assert group.from_first("choose", {"of": group.rank, "step": step}, 20) == {"of": 0, "step": step}
        print("agreed")
        group.close()
        """,
        3,
    )
    assert ranks.end() == [(0, "agreed\n")] * 3


def test_a_rank_that_dies_is_named_on_all_others_which_remove_what_it_left(start_ranks, tmp_path):
    ranks = start_ranks(
        f"""
        import tempfile
        from pyperf_suite.process.system import OwnedFolder

        tempfile.tempdir = {str(tmp_path)!r}
        group.gather("begin", None, 20)
        if group.rank == 1:
            folder = OwnedFolder("worker")
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            group.gather("exchange results", None, 2)
        except RanksMissing as missing:
            print(missing)
        group.close()
        """,
        3,
    )
    first, dead, last = ranks.end()
    assert dead[0] == -signal.SIGKILL
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("pyperf_worker")]
    for _, said in (first, last):
        assert "Rank 1 stopped answering in 'begin'" in said
        assert "'exchange results'" in said


def test_a_rank_that_never_joins_is_named(start_ranks):
    ranks = start_ranks(
        """
        try:
            group.gather("begin", None, 2)
        except RanksMissing as missing:
            print(missing)
        """,
        3,
        missing=(2,),
    )
    first, other = (re.sub(r"^rank \d: ", "", said) for _, said in ranks.end())
    # The first to notice, the rank that waits or its watchdog, differs by half a second; the rank that is named does
    # not.
    assert first == other
    assert re.findall(r"Ranks? (\d+)", first) == ["2"]
    assert "'begin'" in first


def test_a_block_that_never_ends_is_ended_by_the_watchdog_which_names_who_is_behind(start_ranks):
    ranks = start_ranks(
        """
        group.gather("begin", None, 20)
        if group.rank == 0:
            time.sleep(60)
        with group.within("all_reduce of 8 B", 1):
            time.sleep(60)  # stands for a collective that waits for a peer
        """,
        2,
    )
    for code, said in ranks.end():
        assert code == 3
        assert "Rank 0 did not get past 'begin'" in said
        assert "'all_reduce of 8 B'" in said


def test_sigterm_after_a_death_names_the_dead_and_lets_last_words_be_spoken(start_ranks):
    ranks = start_ranks(
        """
        group.watchdog.at_end(lambda sentence: print("kept:", sentence, flush=True))
        group.gather("begin", None, 20)
        with group.within("broadcast of 1 MiB", 60):
            print("ready", flush=True)
            time.sleep(60)
        """,
        2,
    )
    survivor, dead = ranks.processes
    assert survivor.stdout.readline() == dead.stdout.readline() == "ready\n"
    dead.send_signal(signal.SIGKILL)
    survivor.send_signal(signal.SIGTERM)  # what torchrun does when a rank has died
    began = time.monotonic()
    output = survivor.communicate(timeout=20)
    assert survivor.returncode == 3
    assert "kept: Rank 1 stopped answering in 'broadcast of 1 MiB'" in output
    assert time.monotonic() - began < 15


def test_sigterm_from_outside_is_told_as_such(start_ranks):
    ranks = start_ranks(
        """
        group.gather("begin", None, 20)
        print("ready", flush=True)
        group.from_first("wait for work", None, None) if group.rank else time.sleep(60)
        """,
        2,
    )
    for process in ranks.processes:
        assert process.stdout.readline() == "ready\n"
    for process in ranks.processes:
        process.send_signal(signal.SIGTERM)
    for code, said in ranks.end():
        assert code == 3
        assert "ended by SIGTERM" in said


def test_ranks_at_different_steps_are_told_apart(start_ranks):
    ranks = start_ranks(
        """
        from pyperf_suite.errors import UserError
        try:
            group.gather(["measure 8 B", "measure 16 B"][group.rank], None, 10)
        except UserError as error:
            print(error)
        group.close()
        """,
        2,
    )
    (_, first), (_, second) = ranks.end()
    assert first.startswith("Rank 1 is at 'measure 16 B' while rank 0 is at 'measure 8 B'")
    assert second.startswith("Rank 0 is at 'measure 8 B' while rank 1 is at 'measure 16 B'")
