"""Maintains and rebuilds the tables."""
