"""Matrix products: tiles and waves, divisors, and the time on a named GPU."""
