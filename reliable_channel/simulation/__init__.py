"""Simulates participants, channels and lossy links in virtual time, deterministically from a seed.

It speaks with the real protocol core (real SDS participants, real segments, real envelope bytes) and keeps the *truth*
from what the network did: who sent what, what was dropped on the way to the point of observation, what can be rebuilt.
Nothing here reads a clock or global randomness, and nothing here asks the pipeline under test.
"""
