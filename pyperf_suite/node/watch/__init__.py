"""A running job watched from outside: samples of its processes and GPUs, and what they say it waits for."""
