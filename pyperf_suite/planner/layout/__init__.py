"""The fastest parallel layouts of a training on a cluster: `pyperf-suite layout`."""
