"""Compares the tables of a run with the simulation's truth.

``promises``, ``attacks`` and ``verdicts`` are pure functions over plain values. ``tables`` and ``headline`` read what
the pipeline wrote and what its users are shown; ``terminal`` prints the result.
"""
