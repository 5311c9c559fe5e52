"""Starts, stops and observes the jobs."""
