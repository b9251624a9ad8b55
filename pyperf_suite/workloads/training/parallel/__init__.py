"""A training step cut over ranks by torch's own engine: DDP, ZeRO, FSDP2, tensor and pipeline parallelism."""
