"""A participant in a process of its own, to be killed: envelopes and commands come in as lines, and go out as lines.

In: ``M <hex>`` an envelope from the network, ``S <text>`` send it. Out: ``READY <sender id>``, ``A <send id> <text>`` a
send was accepted, ``E <hex>`` an envelope goes to the network, ``R <sequence> <redelivered> <hex>`` a message was
received, ``D <send id>`` a send was acknowledged.
"""

from __future__ import annotations

import sys

from reliable_channel.channel import MessageReceived, SqlitePersistence, create_reliable_channel
from reliable_channel.core.sds import Retransmission
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.waku import decode_waku_message, encode_waku_message
from reliable_channel.transport.clock import SystemClock
from reliable_channel.transport.memory import MemoryNetwork
from tests.unit.channel.channel_world import CHANNEL, TOPIC, quick

PUBSUB = "/waku/2/rs/0/0"


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(database: str) -> None:
    network = MemoryNetwork(clock=SystemClock())
    node = network.node("child")
    network.node("outside").start()
    node.start()

    def outside(sender: str, receiver: str, message: object) -> tuple[float, ...]:
        if sender == "child":
            say("E " + encode_waku_message(message).hex())  # type: ignore[arg-type]
            return ()
        return (0.0,)

    network.link = outside
    config = quick(
        persistence=SqlitePersistence(database),
        sds={"acknowledgement_timeout_ms": 150, "retransmission": Retransmission.FIXED, "max_retransmissions": 1_000},
        query_on_connect=False,
        max_journal_entries=7,
    )
    channel = create_reliable_channel(node, CHANNEL, TOPIC, config=config, threaded=False)
    channel.on_message_received(lambda event: say(f"R {received(event)}"))
    channel.on_message_delivered(lambda event: say(f"D {event.request_id}"))
    say(f"READY {channel.sender_id}")
    for line in sys.stdin:
        kind, _, rest = line.rstrip("\n").partition(" ")
        if kind == "S":
            say(f"A {channel.send(rest.encode())} {rest}")
        elif kind == "M":
            message = decode_waku_message(bytes.fromhex(rest))
            assert not isinstance(message, Malformed)
            network.publish("outside", message, PUBSUB)
        for _ in range(2):
            network.pump()
            channel.step()


def received(event: MessageReceived) -> str:
    return f"{event.sequence} {int(event.redelivered)} {event.message.hex()}"


if __name__ == "__main__":
    main(sys.argv[1])
