"""Decode and latent attention: what they are asked, refuse and state, and how they hold against a sample of tables."""

from __future__ import annotations

import numpy as np
import pytest

from pyperf_suite import laws
from pyperf_suite.errors import UserError
from pyperf_suite.hardware.catalogue import find_gpu
from pyperf_suite.laws import decode_attention as decode
from pyperf_suite.laws.band import Band
from pyperf_suite.laws.calibration import CalibrationBlock, ResidualGrid, all_shipped, shipped_calibration
from pyperf_suite.laws.decode_attention import GRIDS, LAWS, SummedLaw, decode_time, mla_time, pack_laws, unpack_law
from tools.fit.decode import FORMS, Form, Rows, Smooth, decode_rows, held_out, latent_rows
from tools.fit.published import GPUS, SAMPLE, read_columns, versions

# Blocks whose tables are single measurements of an old kernel with one in twelve several times too long: what is
# reached there instead of the targets (15 % for decode, 12 % for latent attention).
NOISY = {("A100 SXM", "mla_decode.vllm"): 21.0}
TARGETS = {"attention_decode": 15.0, "mla_": 12.0}


def shipped_blocks():
    for calibration in all_shipped():
        for name, block in calibration.blocks.items():
            if name.startswith(tuple(TARGETS)):
                yield calibration.gpu, name, block


@pytest.mark.parametrize(
    ("gpu", "name", "block"), [pytest.param(*each, id=" ".join(each[:2])) for each in shipped_blocks()]
)
def test_sites_left_out_are_predicted_within_the_target_and_covered(gpu, name, block):
    target = next(percent for start, percent in TARGETS.items() if name.startswith(start))
    assert block.held_out["mape"] <= NOISY.get((gpu, name), target)
    assert 87 <= block.held_out["coverage"] <= 93
    assert (np.asarray(block.arrays["coverage"]) >= 87).all()


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("cache", list(LAWS))
def test_the_sample_of_decode_is_predicted_and_covered(gpu, cache):
    if cache == "fp8" and gpu != "h100_sxm":
        pytest.skip("the sample has decode with an fp8 cache for H100 alone")
    columns, spec = read_columns(SAMPLE, f"{LAWS[cache]}_{gpu}"), find_gpu(gpu)
    for library in shipped_calibration(spec.name).libraries(LAWS[cache]):
        times = versions(columns, library)[0]
        rows, asked = decode_rows(columns, spec, cache, times)
        there = np.isfinite(columns[times])
        found = decode_time(spec, **asked, window=columns["window_size"][there], cache_dtype=cache, library=library)
        errors = 100 * np.abs(found.seconds / rows.seconds - 1)
        assert errors.size > 100
        assert errors.mean() < 9
        assert found.library == library
        assert np.mean((found.low <= rows.seconds) & (rows.seconds <= found.high)) > 0.8


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("phase", decode.PHASES)
def test_the_sample_of_latent_attention_is_predicted_and_covered(gpu, phase):
    columns, spec = read_columns(SAMPLE, f"mla_{phase}_{gpu}"), find_gpu(gpu)
    errors, covered = [], []
    for library in shipped_calibration(spec.name).libraries(f"mla_{phase}"):
        for kind, rows in latent_rows(columns, spec, phase, library)[0].items():
            scope, cache = kind.split()[0].rstrip(","), kind.split()[-2]
            gemm = kind.split()[2] if scope == "module" else None
            batch, length, heads = (rows.sizes[name] for name in ("batch", "length", "heads"))
            seq_q = length if phase == "prefill" else 1
            found = mla_time(
                spec,
                batch,
                seq_q,
                length,
                heads,
                phase,
                cache_dtype=cache,
                scope=scope,
                gemm_dtype=gemm,
                library=library,
            )
            errors.append(100 * np.abs(found.seconds / rows.seconds - 1))
            covered.append((found.low <= rows.seconds) & (rows.seconds <= found.high))
    assert np.concatenate(errors).mean() < 9
    assert np.concatenate(covered).mean() > 0.82


def test_causes_add_up_to_the_seconds_of_arrays_of_any_shape():
    batch = np.array([[1], [8], [300]])
    for found in (
        decode_time("H100", batch, [1000, 4096], 32, 8, 128, window=[0, 512]),
        mla_time("B200", batch, 1, [1000, 4096], 16, "decode", scope="module", gemm_dtype="nvfp4"),
    ):
        assert found.seconds.shape == (3, 2)
        np.testing.assert_allclose(sum(found.parts.values()), found.seconds, rtol=1e-9)
        assert (found.low < found.high).all()


def test_a_longer_cache_takes_longer_and_a_window_does_not():
    lengths = 2 ** np.arange(10, 17)
    full = decode_time("H200", 64, lengths, 32, 8, 128).seconds
    windowed = decode_time("H200", 64, lengths, 64, 8, 64, window=128, library="sglang").seconds
    assert (np.diff(full) > 0).all()
    assert windowed.max() < 1.3 * windowed.min()
    assert full[-1] > 30 * windowed[-1]


def test_a_cache_that_fits_l2_is_read_faster_than_memory_would_on_an_l40s():
    spec = find_gpu("L40S")
    bytes_of = {batch: batch * 4 * 8192 * 8 * 128 for batch in (2, 8)}
    inside, outside = (decode_time(spec, batch, 8192, 32, 8, 128).seconds for batch in (2, 8))
    assert bytes_of[2] / inside > 1.3 * spec.memory_bytes_per_s
    assert bytes_of[8] / outside < spec.memory_bytes_per_s


def test_a_gpu_without_tables_is_read_off_one_with_the_same_kernels_or_stated_wide():
    def width(gpu):
        found = decode_time(gpu, 64, 8192, 32, 8, 128)
        return float(np.log(found.high / found.low)), found

    own, _ = width("B200")
    alike, found = width("B300")
    other, far = width("RTX PRO 6000")
    assert found.origin.startswith("read off B200 SXM")
    assert own < alike < 2 * own
    # Compute capability 12.0 has not the kernels of 10.0.
    assert far.origin.startswith("read off L40S")
    assert other > 1.5


@pytest.mark.parametrize(
    ("ask", "sentence"),
    [
        (lambda: decode_time("A100", 1, 64, 8, 8, 128, cache_dtype="fp8"), "attention_decode_fp8kv on A100 SXM"),
        (lambda: decode_time("MI300X", 1, 64, 8, 8, 128), "only on A100 SXM, B200 SXM"),
        (lambda: decode_time("V100", 1, 64, 8, 8, 128), "no units for 'bf16'"),
        (lambda: decode_time("H100", 1, 64, 8, 8, 128, cache_dtype="nvfp4"), "caches in bf16 and fp8"),
        (lambda: decode_time("H100", 1, 64, 8, 8, 128, library="cublas"), "there are trtllm, sglang, vllm"),
        (lambda: decode_time("H100", 1, 64, 8, 3, 128), "multiple of the key heads"),
        (lambda: decode_time("H100", 0, 64, 8, 8, 128), "No decode has batch = 0: give a size of 1"),
        (lambda: mla_time("H100", 1, 64, 64, 16, scope="module", gemm_dtype="nvfp4"), "but trtllm: kernel, bf16 cache"),
        (lambda: mla_time("H100", 1, 64, 64, 16, scope="module", library="sglang"), "Of sglang"),
        (lambda: mla_time("H100", 1, 2, 64, 16, "decode"), "one new token"),
        (lambda: mla_time("H100", 1, 64, 64, 16, "backward"), "has the phases"),
        (lambda: mla_time("H100", 1, 64, 64, 16, dtype="int8"), "bf16 and fp8"),
        (lambda: mla_time("H100", 1, 64, 32, 16), "at most as many queries as keys"),
    ],
)
def test_what_was_not_measured_is_refused_in_a_sentence_that_names_what_there_is(ask, sentence):
    with pytest.raises(UserError, match="(?s)" + sentence) as refused:
        ask()
    assert str(refused.value).count("\n") == 0


def test_sizes_beyond_the_table_are_marked():
    found = decode_time("H100", [8, 8, 5000], [4096, 10**6, 4096], 32, 8, 128)
    assert found.extrapolated.tolist() == [False, True, True]


def test_a_library_without_a_kind_leaves_it_to_the_next():
    assert mla_time("L40S", 4, 1024, 1024, 16, scope="module").library == "vllm"
    assert mla_time("L40S", 4, 1024, 1024, 16).library == "trtllm"
    assert laws.mla_time("L40S", 4, 1024, 1024, 16) > 0


def test_packed_laws_come_back_within_a_step():
    axes = (np.array([1.0, 4.0, 16.0]), np.array([64.0, 128.0]))
    grids = [ResidualGrid(axes, np.random.default_rng(i).normal(0, 0.3, (3, 2))) for i in range(2)]
    band = Band(np.array([1e-5]), np.array([-0.1]), np.array([0.2]))
    packed = {
        kind: SummedLaw(np.array([1.0, i]), (grid, grid), band)
        for i, (kind, grid) in enumerate(zip("ab", grids, strict=True))
    }
    over = (("streams", "head_dim"), ("streams", "head_dim"))
    block = CalibrationBlock(pack_laws(packed, over), {})
    for kind, grid in zip("ab", grids, strict=True):
        back = unpack_law(block, kind, over)
        np.testing.assert_allclose(back.grids[1].values, grid.values, atol=0.0075)
        assert back.costs.tolist() == packed[kind].costs.tolist()


def test_fitting_finds_a_smooth_factor_at_sites_that_it_never_saw():
    spec, rng = find_gpu("H100"), np.random.default_rng(0)
    batch, heads, length = (
        each.ravel().astype(float) for each in np.meshgrid(2 ** np.arange(8), 2 ** np.arange(8), 2 ** np.arange(6, 14))
    )
    work = decode.latent_work(spec, "decode", "", 2, batch, np.ones_like(batch), length, heads)
    sizes = decode.latent_sizes(batch, np.ones_like(batch), length, heads)
    factor = np.exp(0.3 * np.sin(np.log2(length) / 2) + 0.1 * np.log2(heads))
    seconds = (1e-5 + 1.2 * work["cache"] + 2e-6 * work["blocks"]) * factor * np.exp(rng.normal(0, 0.02, batch.size))
    error, band = held_out(
        FORMS["mla"], Rows(work, sizes, seconds, (np.log2(heads) * 32 + np.log2(length)).astype(int)), 3
    )
    assert error.mape < 6
    assert 85 < error.coverage < 95
    assert band.high.max() < 0.2


def test_every_grid_of_a_law_has_its_smoothness():
    assert all(
        len(smooth.steps) == len(names)
        for form in FORMS.values()
        for names, smooth in zip(form.grids, form.smooth, strict=True)
    )
    assert FORMS["attention"].grids is GRIDS
    assert Form(GRIDS, [Smooth((1.0,))], {}).stiffer(5.0).smooth[0].steps == (5.0,)
