"""Simulates participants, channels and lossy links in virtual time, deterministically from a seed.

It uses the real protocol core (real SDS participants, real segments, real envelope bytes) and derives the *truth* from
what the network did: who sent what, which envelopes were lost on the way to the observer, what can be rebuilt. It uses
no clock, no global randomness and no result of the pipeline under test.
"""
