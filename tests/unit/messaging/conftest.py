"""Fixtures of the Messaging API's tests; what they are made of stands in the modules they come from."""

from conftest_rest import client, refusing

from tests.support.messaging_world import new_world, world

__all__ = ["client", "new_world", "refusing", "world"]
