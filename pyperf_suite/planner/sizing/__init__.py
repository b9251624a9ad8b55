"""Which nearby sizes of a model train faster: `pyperf-suite size`."""
