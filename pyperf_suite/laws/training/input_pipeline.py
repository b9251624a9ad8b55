"""How long an iteration of training takes whose batches are decoded by processes beside it, and what then binds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class InputPipeline:
    """A batch takes `load_s` seconds of one core, the model's step `step_s`, on its own device or a core of the host.

    Loaders work while the model does, each on a core of its own as long as there are `cores`; queues between them never
    run empty or full by chance. It is the bound of a pipeline, its slowest stage, and so no iteration is shorter.
    """

    load_s: float
    step_s: float
    cores: int
    on_host: bool = False

    def stages(self, loaders: int) -> dict[str, float]:
        """Seconds of an iteration that each possible bottleneck asks for.

        0 loaders load in the training process, where nothing overlaps. Raises ValueError for fewer.
        """
        if loaders < 0:
            raise ValueError(f"there cannot be {loaders} loaders")
        if loaders == 0:
            return {"loading in the training process": self.load_s + self.step_s}
        stages = {"the model": self.step_s, "the loaders": self.load_s / loaders}
        work_s = self.load_s + (self.step_s if self.on_host else 0.0)
        return stages | {"the cores": work_s / self.cores}

    def seconds(self, loaders: int) -> float:
        """Of an iteration: the slowest stage's."""
        return max(self.stages(loaders).values())

    def binds(self, loaders: int) -> str:
        """The slowest stage's name; the first of those that are equally slow."""
        stages = self.stages(loaders)
        return max(stages, key=lambda name: stages[name])

    def starved(self, loaders: int) -> float:
        """The share of an iteration in which the model waits."""
        seconds = self.seconds(loaders)
        return (seconds - self.step_s) / seconds if seconds else 0.0

    def enough(self, most: int) -> int | None:
        """The fewest loaders, up to `most`, with which the model binds; None where it never does."""
        return next((count for count in range(1, most + 1) if self.binds(count) == "the model"), None)
