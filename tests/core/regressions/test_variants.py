import pytest

from pyperf_suite.errors import UserError
from pyperf_suite.regressions.pairs.arms import PairedCase, choose, pair_variants
from pyperf_suite.runner.plan import PlannedCase
from tests.records import a_product


def planned(m, tile=""):
    return PlannedCase("baseline", a_product(m, 64, 64, tile=tile))


def test_each_case_is_paired_with_itself_but_for_the_field():
    (pair,) = pair_variants([planned(65)], {"tile": "32x32x32"}, {"tile": "64x64x64"})
    assert (pair.old, pair.new) == tuple(a_product(65, 64, 64, tile=tile) for tile in ("32x32x32", "64x64x64"))
    assert pair.label == f"{pair.old.label} -> {pair.new.label}"


def test_a_schedule_keeps_the_cases_workers_numbers_are_fields_too_and_cases_that_become_the_same_are_one_pair():
    (pair,) = pair_variants([planned(64)], {"schedule": "persistent"}, {"schedule": "split_k(2)@1"})
    assert (str(pair.old.parameters.schedule), str(pair.new.parameters.schedule)) == ("persistent@1", "split_k(2)@1")
    (pair,) = pair_variants([planned(64)], {"k": "65"}, {"k": "66"})
    assert (pair.old.parameters.k, pair.new.parameters.k) == (65, 66)
    cases = [planned(64, "32x32x32"), planned(64, "64x64x64")]
    assert len(pair_variants(cases, {"tile": "32x32x64"}, {"tile": "64x64x64"})) == 1


def test_cases_that_cannot_be_so_are_left_out_and_where_none_can_the_reason_is_told():
    with pytest.raises(UserError, match="has no field 'colour'"):
        pair_variants([planned(64)], {"colour": "red"}, {"colour": "blue"})
    with pytest.raises(UserError, match="name two variants that differ"):
        pair_variants([planned(64)], {"k": "64"}, {"k": "64"})
    with pytest.raises(UserError, match="'many' is not a number"):
        pair_variants([planned(64)], {"k": "many"}, {"k": "64"})


def test_a_part_of_probe_and_label_or_a_case_chooses_among_benchmarks():
    cases = [PairedCase.same("baseline", planned(m).case) for m in (64, 65, 66)]
    assert choose(cases, None) == choose(cases, "baseline matmul[native") == cases
    assert choose(cases, "native m=65") == choose(cases, "base*m=65") == choose(cases, cases[1].case_id) == [cases[1]]
    with pytest.raises(UserError, match="leaves none of the 3"):
        choose(cases, "cublas")
