"""What a file with kernels of a user's own is written with, and the processes in which they run."""
