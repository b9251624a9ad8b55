"""Search of nearby sizes of a model that train faster: `pyperf-suite size`."""
