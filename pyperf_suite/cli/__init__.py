"""What can be typed after `pyperf-suite`: one module a command or a family, and the options that they share."""
