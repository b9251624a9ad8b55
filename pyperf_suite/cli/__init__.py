"""Commands of `pyperf-suite`: one module for a command or a family, and the options that they share."""
