"""The suite's own Triton matrix product, launched into the stopwatch's stream."""

from __future__ import annotations

import importlib.util
import itertools

from pyperf_suite.errors import Unsupported, UserError
from pyperf_suite.kernels import matmul as triton_matmul
from pyperf_suite.laws.matmul.tiling import visiting_group
from pyperf_suite.workloads.matmul.cuda_own import require_no_cluster
from pyperf_suite.workloads.matmul.parameters import MatmulParameters
from pyperf_suite.workloads.operands import Operands
from pyperf_suite.workloads.operator import Bound, Launches, TimedImplementation, TorchTensors, refusing
from pyperf_suite.workloads.workload import Kernel, Place

# Fewer warps leave tensor cores idle, more leave too few registers: as in kernels.matmul.default_set.
MANY_WARPS_FROM_TILE = 128 * 128
# Where the tile leaves the depth of the pipeline open; each where those before do not fit.
USUAL_STAGES = (4, 3, 2)


class TritonMatmul(TimedImplementation[MatmulParameters]):
    """`kernels/matmul.py`: through tensor descriptors where the device and the shapes allow, else through addresses.

    Where neither fits the device's shared memory and the tile leaves the stages open, the same with fewer stages.
    """

    name = "triton"
    device_kind = "cuda"

    def validate(self, parameters: MatmulParameters) -> None:
        """Raise UserError for a tile, schedule or type that the Triton kernel does not have."""
        parameters.require_own_schedule(self.name)
        with refusing(UserError):
            configuration_of(parameters, "addresses", stages_of(parameters)[0])

    def prepare(self, parameters: MatmulParameters, operands: Operands, place: Place) -> Launches:
        """Compile for the device through Triton and bind a launch to each operand set."""
        if importlib.util.find_spec("triton") is None:
            raise Unsupported("triton is not installed.")
        memory = TorchTensors(operands, place)
        hopper = memory.torch.cuda.get_device_capability(place.device.index) >= (9, 0)
        paths = ("descriptors", "addresses") if hopper else ("addresses",)
        for stages, path in itertools.product(stages_of(parameters), paths):
            try:
                configuration = configuration_of(parameters, path, stages)
                product = triton_matmul.Product(configuration, parameters.m, parameters.n, parameters.k, memory.device)
                bound = [Bound.into(product.bind(s["a"], s["b"], s["c"]), c=s["c"]) for s in memory.sets]
                launches = Launches(memory, bound)
                # How much shared memory a kernel takes is known once it is compiled, which the first launch does.
                compiled = launches.launch(0)
                break
            except ValueError as error:
                refusal = error
        else:
            raise Unsupported(str(refusal))
        memory.synchronize()
        details = {
            "schedule": str(parameters.schedule),
            "tile": str(parameters.tile),
            "stages": configuration.stages,
            "warps": configuration.warps,
            "group": configuration.group,
            "registers": getattr(compiled, "n_regs", None),
            "spills": getattr(compiled, "n_spills", None),
        }
        launches.kernel = Kernel(getattr(compiled, "name", "matmul"), path, details)
        return launches


def stages_of(parameters: MatmulParameters) -> tuple[int, ...]:
    """The depths of the pipeline to try in turn: the one asked for, or what Triton's kernels usually take."""
    asked = 1 if parameters.tile is None else parameters.tile.stages
    return (asked,) if asked > 1 else USUAL_STAGES


def configuration_of(parameters: MatmulParameters, operands: str, stages: int) -> triton_matmul.Configuration:
    """The Triton configuration for a case. Raises ValueError where there is none."""
    tile, schedule = parameters.tile, parameters.schedule
    if tile is None:
        raise ValueError("Triton's matmul needs a tile: name one, as in 128x128x64:s3.")
    require_no_cluster("triton", tile)
    return triton_matmul.Configuration(
        (tile.m, tile.n, tile.k),
        parameters.dtype,
        parameters.output_dtype,
        parameters.layout,
        stages=stages,
        warps=8 if tile.m * tile.n >= MANY_WARPS_FROM_TILE else 4,
        policy=schedule.policy,
        splits=schedule.splits,
        workers=schedule.workers,
        group=visiting_group(parameters.m, parameters.n, tile, schedule.workers, schedule.splits),
        operands=operands,
    )
