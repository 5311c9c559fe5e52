"""Takes an envelope apart, layer by layer: Waku message, SDS message, segment. For a notebook, or a captured file."""

from reliable_channel.channel import create_reliable_channel
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import decode_sds_message
from reliable_channel.core.wire.segment import decode_segment
from reliable_channel.core.wire.waku import decode_waku_message, encode_waku_message
from reliable_channel.transport.memory import MemoryNetwork

network = MemoryNetwork()
alice = network.node("alice")
alice.start()
topic = "/my-app/1/lobby/proto"
with create_reliable_channel(alice, "lobby", topic, "alice", clock=network.clock, threaded=False) as channel:
    channel.send(bytes(200_000))  # two segments
    channel.step()
    network.run(ms=100)

for data in [*map(encode_waku_message, alice.sent), b"\xff\xff"]:
    envelope = decode_waku_message(data)
    if isinstance(envelope, Malformed):  # bytes from the network never raise
        print("no Waku message:", envelope.reason)
        continue
    message = decode_sds_message(envelope.payload)
    if not isinstance(message, Malformed):
        print(message.kind, "by", message.sender_id, "at", message.lamport_timestamp)
        segment = decode_segment(message.content or b"")
        if not isinstance(segment, Malformed):
            print("  segment", segment.index + 1, "of", segment.data_count, "with", len(segment.payload), "bytes")
