"""One matrix product explained: where its time goes, the library's likely tile, the next good sizes."""
