"""Attention head sizing: splits of a hidden size into heads, what they cost and why."""
