"""Times as people write them."""

from __future__ import annotations

import datetime as dt

import pytest

from reliable_channel.analysis.report.times import moment
from reliable_channel.core.errors import LocalError

NOW = dt.datetime(2026, 11, 21, 12, 30, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "iso"),
    [
        ("2026-11-01", "2026-11-01T00:00:00+00:00"),
        ("2026-11-01T12:00", "2026-11-01T12:00:00+00:00"),
        ("2026-11-01T12:00:00+02:00", "2026-11-01T10:00:00+00:00"),
        ("2026-11-01T12:00:00Z", "2026-11-01T12:00:00+00:00"),
        ("now", "2026-11-21T12:30:00+00:00"),
        ("24h", "2026-11-20T12:30:00+00:00"),
        ("90min", "2026-11-21T11:00:00+00:00"),
        (" 7D ", "2026-11-14T12:30:00+00:00"),
    ],
)
def test_it_is_a_moment(text: str, iso: str) -> None:
    assert moment(text, NOW).isoformat() == iso


@pytest.mark.parametrize("text", ["", "yesterday", "24", "-3h", "2026-13-01", "999999w", "١h", "9" * 5000])
def test_it_is_none(text: str) -> None:
    with pytest.raises(LocalError, match="is not a time") as fault:
        moment(text, NOW)
    assert "24h" in fault.value.remedy
