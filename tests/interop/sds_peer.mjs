// A peer of the published package @waku/sds: one JSON command per line on stdin, one JSON answer per line on stdout.
import { createInterface } from "node:readline";

import { Message, MessageChannel, MessageChannelEvent } from "@waku/sds";

const [channelId, senderId] = process.argv.slice(2);
const channel = new MessageChannel(channelId, senderId, { causalHistorySize: 2 });
const seen = { delivered: [], possible: [], acknowledged: [], missing: [], repaired: [] };

const idOf = (detail) => (typeof detail === "string" ? detail : detail.messageId);
channel.addEventListener(MessageChannelEvent.InMessageDelivered, (event) => seen.delivered.push(idOf(event.detail)));
channel.addEventListener(MessageChannelEvent.OutMessagePossiblyAcknowledged, (event) =>
  seen.possible.push(idOf(event.detail)),
);
channel.addEventListener(MessageChannelEvent.OutMessageAcknowledged, (event) => seen.acknowledged.push(idOf(event.detail)));
channel.addEventListener(MessageChannelEvent.InMessageMissing, (event) =>
  seen.missing.push(...event.detail.map((entry) => entry.messageId)),
);

const hex = (bytes) => Buffer.from(bytes).toString("hex");
const fromHex = (text) => new Uint8Array(Buffer.from(text, "hex"));

const commands = {
  async send({ content }) {
    let sent;
    channel.pushOutgoingMessage(fromHex(content), async (message) => {
      sent = { id: message.messageId, data: hex(message.encode()) };
      return { success: true };
    });
    await channel.processTasks();
    return sent;
  },
  async sync() {
    let data = null;
    await channel.pushOutgoingSyncMessage(async (message) => {
      data = hex(message.encode());
      return true;
    });
    return { data };
  },
  async receive({ data }) {
    const message = Message.decode(fromHex(data));
    if (message === undefined) return { kind: null };
    channel.pushIncomingMessage(message, undefined);
    await channel.processTasks();
    return { kind: message.constructor.name };
  },
  async sweep() {
    channel.sweepIncomingBuffer();
    return {};
  },
  async state() {
    return seen;
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  let answer;
  try {
    answer = await commands[command.name](command);
  } catch (error) {
    answer = { error: String(error) };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
