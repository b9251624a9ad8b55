"""Divisibility: sizes on a ladder of divisors, what padding wins, where rates jump."""
