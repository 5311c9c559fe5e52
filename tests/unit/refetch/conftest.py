"""Fixtures of the tests of refetch; what they are made of is in the modules they come from."""

from tests.support.refetching import settings

__all__ = ["settings"]
