"""Watching, maintaining and rebuilding the tables."""
