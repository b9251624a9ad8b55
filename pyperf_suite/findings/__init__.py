"""What a probe is and what it found, as data: axes, rows, quantities, claims, figures. No text is made here."""
