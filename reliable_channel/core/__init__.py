"""Implements the protocols: wire formats, segmentation, SDS and rate limits, with the error tree of the project. No
clock, no I/O, no randomness."""
