import numpy as np
import pytest

from pyperf_suite.kernels import gemm_sm80
from pyperf_suite.kernels.gemm_sm80 import Specialisation, default_set, in_layout, specialise
from pyperf_suite.kernels.schedule import Schedule
from pyperf_suite.workloads.backends import CudaDevice
from tests.core.gpu.conftest import memory

pytestmark = pytest.mark.gpu

SCHEDULES = (("data_parallel", 1, 1, 4), ("persistent", 1, 7, 2), ("split_k", 3, 1, 1), ("stream_k", 1, 7, 1))
# Tolerance of the relative norm: tensor cores cut off, instead of rounding, parts below the largest term they add.
TOLERANCE = 1e-5
LAYOUTS = ("TN", "NN", "NT", "TT")
PATHS = {"16-byte": 8, "8-byte": 4, "4-byte": 2, "predicated": 1}


class OnDevice:
    """A product of fp16 operands into fp32, on the device, ready to be launched again and again."""

    def __init__(
        self, device: CudaDevice, instance: Specialisation, sizes: tuple[int, int, int], leading: tuple[int, int, int]
    ) -> None:
        generator = np.random.default_rng(0)
        m, n, k = sizes
        rows = (k if instance.a_transposed else m, n if instance.b_transposed else k)
        stored = [generator.standard_normal(shape).astype(np.float16) for shape in zip(rows, leading[:2], strict=True)]
        lanes = (m if instance.a_transposed else k, k if instance.b_transposed else n)
        a, b = (matrix[:, :width].astype(np.float64) for matrix, width in zip(stored, lanes, strict=True))
        self.expected = (a.T if instance.a_transposed else a) @ (b.T if instance.b_transposed else b)
        self.device, self.instance, self.sizes, self.leading = device, instance, sizes, leading
        self.c_shape = (m, leading[2])
        self.operands = [memory(device, matrix) for matrix in stored]
        cubin = device.compile(gemm_sm80.SOURCE, *gemm_sm80.sources(), instance.options())
        self.kernel = device.kernel(cubin, gemm_sm80.ENTRY)

    def run(self, schedule: Schedule, launches: int = 1) -> np.ndarray:
        c = memory(self.device, np.full(self.c_shape, np.nan, np.float32))
        workspace = memory(
            self.device, np.full(max(self.instance.workspace_bytes(schedule), 4) // 4, np.nan, np.float32)
        )
        flags = memory(self.device, np.zeros(max(self.instance.flags_bytes(schedule), 4) // 4, np.int32))
        addresses = [each.address for each in (*self.operands, c)]
        arguments = self.instance.arguments(
            *addresses, self.leading, self.sizes, schedule, workspace.address, flags.address
        )
        launch = self.device.native.Launch(
            self.kernel,
            (self.instance.grid(schedule), 1, 1),
            (self.instance.threads, 1, 1),
            arguments,
            dynamic_shared_bytes=self.instance.smem_bytes,
        )
        for _ in range(launches):
            launch.run()
        self.device.context.synchronize()
        assert not np.frombuffer(flags.read(), np.int32).any()
        result = np.frombuffer(c.read(), np.float32).reshape(self.c_shape)
        assert np.isnan(result[:, self.sizes[1] :]).all()
        return result[:, : self.sizes[1]]


def relative_error(result: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(result - expected) / np.linalg.norm(expected))


def leading_dimensions(placed: Specialisation, sizes: tuple[int, int, int], multiple: int) -> tuple[int, int, int]:
    """Leading dimensions of A, B and C: odd multiples of `multiple` elements."""
    m, n, k = sizes
    rows = (m if placed.a_transposed else k, k if placed.b_transposed else n, n)
    steps = [-(-row // multiple) for row in rows]
    leading = [(step + (step % 2 == 0)) * multiple for step in steps]
    return leading[0], leading[1], leading[2]


def instance_of(tile: Specialisation, layout: str, multiple: int = 8) -> Specialisation:
    """The tile in a layout, for leading dimensions that are odd multiples of `multiple` elements."""
    placed = in_layout(tile, layout)
    return specialise(
        *(tile.m, tile.n, tile.k, tile.stages),
        in_type="fp16",
        out_type="fp32",
        a_transposed=placed.a_transposed,
        b_transposed=placed.b_transposed,
        leading_dimensions=(multiple, multiple, multiple),
    )


def instances() -> set[Specialisation]:
    """All that the tests of this file launch: what `tools/gpu_check.sh prepare` compiles beforehand."""
    return {instance_of(tile, layout) for tile in default_set() for layout in LAYOUTS} | {
        instance_of(default_set()[2], layout, multiple) for multiple in PATHS.values() for layout in LAYOUTS
    }


def product(
    device: CudaDevice, tile: Specialisation, layout: str, sizes: tuple[int, int, int], multiple: int = 8
) -> OnDevice:
    """A product by the tile in a layout, with leading dimensions that are odd multiples of `multiple` elements."""
    instance = instance_of(tile, layout, multiple)
    assert instance in instances(), f"{instance.name} is compiled while the test runs: name it in `instances`"
    properties = device.context.properties
    instance.check_device(".".join(map(str, properties.compute_capability)))
    return OnDevice(device, instance, sizes, leading_dimensions(instance, sizes, multiple))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("tile", default_set(), ids=lambda tile: tile.name)
def test_every_default_tile_is_right_in_every_layout_and_schedule(device, tile, layout):
    sizes = (523, 397, 611)
    found = product(device, tile, layout, sizes)
    for policy, splits, workers, group in SCHEDULES:
        result = found.run(found.instance.schedule(*sizes, policy, splits, workers, group))
        assert relative_error(result, found.expected) < TOLERANCE, policy


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("path", PATHS)
def test_every_path_is_right_in_every_layout(device, path, layout):
    found = product(device, default_set()[2], layout, (259, 131, 197), PATHS[path])
    assert path == {2: "predicated"}.get(found.instance.access_a, f"{found.instance.access_a}-byte")
    result = found.run(found.instance.schedule(259, 131, 197, "data_parallel"))
    assert relative_error(result, found.expected) < TOLERANCE


@pytest.mark.parametrize("schedule", [("split_k", 5, 1), ("stream_k", 1, 31)], ids=str)
def test_shared_tiles_have_the_same_bits_in_each_launch_and_leave_their_flags_zero(device, schedule, is_double):
    sizes = (640, 448, 512 if is_double else 4096)
    gemm = product(device, default_set()[5], "TN", sizes)
    policy, splits, workers = schedule
    shared = gemm.instance.schedule(*sizes, policy, splits, workers)
    first = gemm.run(shared)
    assert relative_error(first, gemm.expected) < TOLERANCE
    for _ in range(5):
        assert (gemm.run(shared, launches=20) == first).all()


@pytest.mark.parametrize("tile", default_set(), ids=lambda tile: tile.name)
def test_the_driver_counts_as_many_blocks_as_the_formula(device, tile):
    from pyperf_suite.kernels.occupancy import occupancy

    found = product(device, tile, "TN", (tile.m, tile.n, tile.k))
    target = device.context.architecture
    formula = occupancy(target, tile.threads, found.kernel.registers, tile.smem_bytes)
    assert found.kernel.max_active_blocks(tile.threads, found.instance.smem_bytes) == formula.blocks
