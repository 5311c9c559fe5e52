"""Represents one difference between the tables and the truth."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """One way in which the tables differ from the truth."""

    promise: str
    channel_id: str
    subject: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.channel_id or '-'} {self.subject}: {self.what}"
