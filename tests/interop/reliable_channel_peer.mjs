// A participant of the published package @waku/sdk on a node that has three methods: lightPush.send, filter.subscribe
// and store.queryGenerator. What they carry goes as JSON lines to the program that started this one, which has Kafka.
import { createInterface } from "node:readline";

import { ReliableChannel, createDecoder, createEncoder } from "@waku/sdk";

const [channelId, senderId, contentTopic, pubsubTopic] = process.argv.slice(2);
const routingInfo = { pubsubTopic, clusterId: 0, shardId: 0, isAutoSharding: false, isStaticSharding: true };
const encoder = createEncoder({ contentTopic, routingInfo });
const decoder = createDecoder(contentTopic, routingInfo);

const say = (what, rest) => process.stdout.write(JSON.stringify({ what, ...rest }) + "\n");
const hex = (bytes) => Buffer.from(bytes).toString("hex");
const decode = async (data) =>
  decoder.fromProtoObj(pubsubTopic, await decoder.fromWireToProtoObj(new Uint8Array(Buffer.from(data, "hex"))));

let receive = async () => {};
let questions = 0;
const answers = new Map();

const node = {
  lightPush: {
    async send(encoder, message) {
      say("envelope", { data: hex(await encoder.toWire(message)) });
      return { successes: ["kafka"], failures: [] };
    },
  },
  filter: {
    async subscribe(_decoder, callback) {
      receive = callback;
      return true;
    },
  },
  store: {
    async *queryGenerator(_decoders, { messageHashes }) {
      const number = ++questions;
      const answer = new Promise((resolve) => answers.set(number, resolve));
      say("query", { number, hashes: messageHashes.map(hex) });
      yield (await answer).map(decode);
    },
  },
};

const channel = await ReliableChannel.create(node, channelId, senderId, encoder, decoder, {
  syncMinIntervalMs: 1500,
  retryIntervalMs: 2000,
  maxRetryAttempts: 30,
  retrieveFrequencyMs: 1000,
  sweepInBufIntervalMs: 500,
  processTaskMinElapseMs: 100,
  causalHistorySize: 10,
});
channel.addEventListener("message-received", ({ detail }) => say("received", { payload: hex(detail.payload) }));
channel.addEventListener("message-acknowledged", ({ detail }) => say("acknowledged", { id: detail }));
channel.addEventListener("sending-message-irrecoverable-error", ({ detail }) => say("error", { id: detail.messageId }));

createInterface({ input: process.stdin }).on("line", async (line) => {
  const command = JSON.parse(line);
  if (command.what === "envelope") await receive(await decode(command.data));
  if (command.what === "send") say("sent", { id: channel.send(new Uint8Array(Buffer.from(command.payload, "hex"))) });
  if (command.what === "answer") answers.get(command.number)(command.data);
}).on("close", () => process.exit(0));
say("ready", {});
