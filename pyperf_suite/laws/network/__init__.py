"""Collectives: bytes and rates, time over size, and whether a network is enough to train over."""
