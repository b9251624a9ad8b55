"""The commands of the planner: `size`, `explain`, `layout`, `study` and `calibrate`."""
