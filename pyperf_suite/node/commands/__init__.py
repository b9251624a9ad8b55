"""The commands of the node package: `doctor`, `accept` and `watch`."""
