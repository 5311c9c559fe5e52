"""A node's record names its shards, and no record raises."""

from __future__ import annotations

import base64

from hypothesis import given
from hypothesis import strategies as st

from reliable_channel.transport.enr import relay_topics
from tests.support.fake_waku_admin import enr_of, rlp

GO_WAKU = (
    "enr:-LK4QMlzmVVL5xp-5vTmcaC2XHhmQbCDnfauxdvZbD8y80QyB3sfoQ3quUb5xjy3lx9I-xISMww4O1SG0VDt5N4wg4uGAaIFWxjZgmlkgnY0"
    "gmlwhH8AAAGKbXVsdGlhZGRyc4wACgR_AAABBusp3QOCcnOFABABACCJc2VjcDI1NmsxoQJ5vmZ--dy7rFWgYpXOhwsHApv82y3OKNlZ8oFbFvgX"
    "mIN0Y3CC6sWFd2FrdTIP"
)
"""Of a go-waku 0.10.1 node of cluster 16 with shard 32."""


def test_the_record_of_a_running_node_names_its_shard() -> None:
    assert relay_topics(GO_WAKU) == {"/waku/2/rs/16/32"}


@given(st.integers(0, 65_535), st.sets(st.integers(0, 1_023), max_size=20))
def test_shards_come_back_from_a_list_and_from_bits(cluster: int, shards: set[int]) -> None:
    topics = {f"/waku/2/rs/{cluster}/{shard}" for shard in shards}
    assert relay_topics(enr_of(topics)) == topics
    bits = sum(1 << shard for shard in shards).to_bytes(128, "little")
    fields = [b"s" * 64, b"\x01", b"rsv", cluster.to_bytes(2, "big") + bits]
    record = rlp(0xC0, b"".join(rlp(0x80, field) for field in fields))
    assert relay_topics("enr:" + base64.urlsafe_b64encode(record).decode()) == topics


@given(st.one_of(st.none(), st.integers(), st.text(), st.binary(max_size=300)))
def test_no_record_raises(found: object) -> None:
    text = "enr:" + base64.urlsafe_b64encode(found).decode() if isinstance(found, bytes) else found
    known = relay_topics(text)
    assert known is None or isinstance(known, frozenset)
