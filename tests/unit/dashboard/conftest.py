"""Fixtures of the tests of the dashboard; what they are made of is in the modules they come from."""

from tests.support.dashboard_client import client

__all__ = ["client"]
