"""The wave law of a run of bench_tiles.py: pyperf-suite export latest -o tiles.csv; python wave_law.py tiles.csv."""

import csv
import sys
from pathlib import Path
from statistics import median

from pyperf_suite.laws.tiling import Schedule, Tile, critical_path, judged_by_waves, tile_count, wave_count

with Path(sys.argv[1]).open(newline="") as file:
    cases = [row for row in csv.DictReader(file) if row["kind"] == "timing" and row["outcome"] == "ok"]
sizes = [{name: int(row[f"case.parameters.{name}"]) for name in ("m", "n", "k", "tile", "workers")} for row in cases]
paths, waves = [], []
for size in sizes:
    tile = Tile(size["m"], size["tile"], size["k"])
    paths.append(critical_path(size["m"], size["n"], size["k"], tile, Schedule("data_parallel", size["workers"])))
    waves.append(wave_count(tile_count(size["m"], size["n"], tile), size["workers"]))
# Fitted to odd numbers of waves, judged on even ones.
found = judged_by_waves(paths, [float(row["metrics.time.value"]) for row in cases], waves)
law = found.law
print(f"time = {law.overhead_s * 1e6:.1f} us + waves x {law.tile_seconds(sizes[0]['k']) * 1e6:.1f} us")
print(f"It misses the {len(found.held_out)} cases that it was not fitted to by {median(found.held_out):.1%} (median).")
