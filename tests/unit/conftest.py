"""Unit tests: no Spark, no broker, no clock. Hypothesis has no deadline, because the machine may be busy.

``HYPOTHESIS_PROFILE``: ``full`` (before a release) tries all examples, ``default`` a quarter of them, and ``thorough``
ten times as many.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.support.examples import USUAL

settings.register_profile(
    "default",
    max_examples=USUAL // 4,
    deadline=None,
    derandomize=False,  # also where Hypothesis notices a CI: many runs find more than one with many examples
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("full", parent=settings.get_profile("default"), max_examples=USUAL)
settings.register_profile("thorough", parent=settings.get_profile("full"), max_examples=10 * USUAL)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
