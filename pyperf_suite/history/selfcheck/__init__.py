"""How often a machine's verdicts are wrong: code against itself, and against itself slowed down."""
