"""Holds the options of the three kinds of kafka-python clients.

Each kind has options that the others refuse, so one dictionary for all of them cannot hold any of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

BOOTSTRAP_MS = 10_000
"""How long a client tries to reach the first broker; kafka-python's default is 30 s."""


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """Keyword arguments of ``KafkaConsumer``, ``KafkaProducer`` and ``KafkaAdminClient``; secrets in clear: never print
    them."""

    consumer: Mapping[str, Any]
    producer: Mapping[str, Any]
    admin: Mapping[str, Any]
