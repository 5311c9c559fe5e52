"""The protocol core: wire formats, segmentation, SDS, rate limits, errors. No clock, no I/O, no randomness."""
