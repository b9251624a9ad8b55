"""Which parallel layout trains a model fastest on a cluster: `pyperf-suite layout`."""
