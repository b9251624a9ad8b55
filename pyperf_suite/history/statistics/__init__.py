"""How few numbers decide: intervals, when to stop, many benchmarks at once, the noise from run to run."""
