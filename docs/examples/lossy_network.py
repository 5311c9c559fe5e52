"""A network that loses a third of all copies: retransmission brings a message of several segments through."""

from reliable_channel.channel import MessageReceived, create_reliable_channel
from reliable_channel.transport.memory import LinkFaults, MemoryNetwork

network = MemoryNetwork(link=LinkFaults(loss=0.33, seed=7).link())
channels = []
for name in ("alice", "bob"):
    network.node(name).start()
    node = network.node(name)
    node.store = None  # nobody to ask for what was lost
    channels.append(
        create_reliable_channel(node, "lobby", "/my-app/1/lobby/proto", name, clock=network.clock, threaded=False)
    )
channels[1].on(MessageReceived, lambda event: print("bob received", len(event.message), "bytes"))
channels[0].send(bytes(300_000))  # three segments
for _ in range(600):  # a minute of simulated time
    network.run(ms=100)
    for channel in channels:
        channel.step()
print("alice sent", len(network.node("alice").sent), "envelopes")
for channel in channels:
    channel.close()
