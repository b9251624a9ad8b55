"""The probes that calibrations are fitted from."""
