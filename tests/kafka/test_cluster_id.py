"""The cluster id that tells our own broker from another one, asked of a real broker."""

from __future__ import annotations

import pytest

from reliable_channel.config import Settings
from reliable_channel.runtime.own_broker import cluster_id_of

pytestmark = pytest.mark.kafka


def test_a_broker_tells_its_cluster_id(broker: Settings) -> None:
    found = cluster_id_of(broker.kafka)
    assert found is not None
    assert len(found) == 22, "the form that StorageTool writes into meta.properties"
