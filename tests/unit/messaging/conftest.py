"""Fixtures of the Messaging API's tests; what they are made of stands in the modules they come from."""

from conftest_messaging import new_world, world
from conftest_rest import client, refusing

__all__ = ["client", "new_world", "refusing", "world"]
