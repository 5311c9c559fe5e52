// A reliable channel of the published package @waku/sdk on its light node, which reaches a running Waku node over a
// websocket: lightpush to send, filter to receive. Commands and events are JSON lines on standard input and output.
import { createInterface } from "node:readline";

// libp2p expects Node 22; CI may have 18. Static imports would run before this line.
Promise.withResolvers ??= () => {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};
const { yamux } = await import("@chainsafe/libp2p-yamux");
const { Protocols, ReliableChannel, createLightNode } = await import("@waku/sdk");

const [address, clusterId, shardId, channelId, senderId, contentTopic] = process.argv.slice(2);
const say = (what, rest) => process.stdout.write(JSON.stringify({ what, ...rest }) + "\n");
const hex = (bytes) => Buffer.from(bytes).toString("hex");

const node = await createLightNode({
  networkConfig: { clusterId: Number(clusterId) },
  bootstrapPeers: [address],
  defaultBootstrap: false,
  discovery: { dns: false, peerExchange: false, peerCache: false },
  numPeersToUse: 1,
  // go-waku speaks no other multiplexer, and the package's own default is mplex.
  libp2p: { streamMuxers: [yamux()], filterMultiaddrs: false, hideWebSocketInfo: true },
});
// go-waku 0.10 names its shards in field 3 of the metadata protocol, @waku/sdk 0.0.36 reads field 2 and finds none.
const metadata = node.libp2p.services.metadata;
const keep = metadata.savePeerShardInfo.bind(metadata);
metadata.savePeerShardInfo = (peer, info) => keep(peer, { ...info, shards: [Number(shardId)] });
await node.start();
await node.waitForPeers([Protocols.LightPush, Protocols.Filter], 30_000);

// go-waku has lightpush v2; the package asks for v3 unless every call says otherwise.
const push = node.lightPush.send.bind(node.lightPush);
node.lightPush.send = (encoder, message, options) => push(encoder, message, { ...options, useLegacy: true });

const topic = { contentTopic, shardId: Number(shardId) };
const channel = await ReliableChannel.create(
  node, channelId, senderId, node.createEncoder(topic), node.createDecoder(topic), {
    syncMinIntervalMs: 1500,
    retryIntervalMs: 3000,
    maxRetryAttempts: 30,
    queryOnConnect: false,
    causalHistorySize: 10,
  });
channel.addEventListener("message-received", ({ detail }) => say("received", { payload: hex(detail.payload) }));
channel.addEventListener("message-acknowledged", ({ detail }) => say("acknowledged", { id: detail }));

createInterface({ input: process.stdin }).on("line", (line) => {
  const command = JSON.parse(line);
  if (command.what === "send") say("sent", { id: channel.send(new Uint8Array(Buffer.from(command.payload, "hex"))) });
}).on("close", () => process.exit(0));
say("ready", {});
