"""Fixtures of the Messaging API's tests; what they are made of stands in the modules they come from."""

from tests.support.messaging_world import new_world, world
from tests.unit.messaging.conftest_rest import client, refusing

__all__ = ["client", "new_world", "refusing", "world"]
