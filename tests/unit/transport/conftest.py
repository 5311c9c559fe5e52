"""Fixtures of the tests of the bridge; what they are made of is in the modules they come from."""

from tests.support.bridge_parts import parts

__all__ = ["parts"]
