"""What guides claim about training throughput, each claim beside what was measured here."""
