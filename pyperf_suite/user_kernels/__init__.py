"""Declare kernels in a user's file, and run them in processes."""
