"""Two participants on a network in this process: one sends, the other receives, and the sender is told so."""

from reliable_channel.channel import MessageDelivered, MessageReceived, create_reliable_channel
from reliable_channel.transport.memory import MemoryNetwork

network = MemoryNetwork()  # for a real one: reliable_channel.runtime.build.kafka_node, or WakuRestNode
channels = {}
for name in ("alice", "bob"):
    network.node(name).start()
    channels[name] = create_reliable_channel(
        network.node(name), "lobby", "/my-app/1/lobby/proto", name, clock=network.clock, threaded=False
    )
channels["bob"].on(MessageReceived, lambda event: print("bob received:", event.message.decode()))
channels["alice"].on(MessageDelivered, lambda event: print("alice knows that it was delivered"))
channels["alice"].send(b"Hello Bob")
for _ in range(50):  # with threaded=True, the default, channels work on their own
    network.run(ms=100)
    for channel in channels.values():
        channel.step()
for channel in channels.values():
    channel.close()
