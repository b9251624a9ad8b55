"""What averaging gradients over ranks costs a step, and what of it overlap, buckets and no_sync save."""
