"""Fixtures of the tests of the report; what they are made of is in the modules they come from."""

from tests.support.reports import as_json, everything, the_story

__all__ = ["as_json", "everything", "the_story"]
