"""The probes of the node package: `accept` and `topology`."""
