"""Attention: one signature, our own kernels and the libraries' beside them."""
