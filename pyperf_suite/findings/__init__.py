"""Declare probes and their findings as data: axes, rows, quantities, claims, figures. No text is made here."""
