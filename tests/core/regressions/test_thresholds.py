import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.regressions.thresholds import load_thresholds, matches

LABEL = "matmul[native m=384 n=384 k=384 schedule=data_parallel@1]"


def written(folder, text):
    (folder / "pyproject.toml").write_bytes(text.encode(errors="surrogateescape"))
    return load_thresholds(folder)


def test_the_command_line_wins_then_the_last_pattern_that_matches_then_the_file(tmp_path):
    thresholds = written(
        tmp_path,
        """
        [tool.pyperf_suite.regressions]
        margin = "2 %"
        [tool.pyperf_suite.regressions.margins]
        "tile_wave" = 0.03
        "matmul[native * schedule=data_parallel@1]" = "4%"
        """,
    )
    assert thresholds.margin_of("tile_wave", LABEL) == 0.04
    assert thresholds.margin_of("tile_wave", "matmul[torch]") == 0.03
    assert thresholds.margin_of("baseline", "matmul[torch]") == 0.02
    assert thresholds.margin_of("tile_wave", LABEL, requested=0.005) == 0.005


def test_brackets_of_a_label_are_themselves():
    assert matches("matmul[native*", LABEL)
    assert not matches("matmu[lnm]*", LABEL)
    assert matches("tile?wave", "tile_wave")
    assert not matches("tile", "tile_wave")


def test_a_pattern_of_many_stars_takes_no_longer_than_another():
    assert not matches("*" * 40 + "z", LABEL)
    assert not matches("*a" * 12 + "*z", "a" * 200)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[tool.pyperf_suite.regressions]\nmargins = 3", "maps probes or labels"),
        ("[tool.pyperf_suite.regressions]\nmargin = 3", "not between 0 and 100 %"),
        ("[tool.pyperf_suite.regressions]\nmargin = [1]", "not a share"),
        ("[tool.pyperf_suite.regressions]\ntolerance = 3", "no key 'tolerance': it has margin"),
        ('[tool.pyperf_suite.regressions.margins]\n"a*" = "much"', "'a*': 'much' is not a share"),
        ("[tool.pyperf_suite]\nregressions = 1", "is a table"),
        ("margin = = 1", "is not TOML"),
        ("\udcff\udcfe", "is not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence_that_names_it(tmp_path, text, sentence):
    with pytest.raises(UserError, match=r"pyproject\.toml") as error:
        written(tmp_path, text)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)
