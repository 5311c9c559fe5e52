// Writes a Kafka topic to SQLite with js-waku's MessageChannel: the minimal consumer that a developer would write.
//
// node consumer.mjs SERVERS TOPIC LOG RECORDS FILE: measures the RECORDS records after the first LOG records of the
// topic. Prints one JSON line: records, seconds, CPU seconds, rows in the database.
import { Message, MessageChannel, MessageChannelEvent } from "@waku/sds";
import { WakuMessage } from "@waku/proto";
import { Kafka, logLevel } from "kafkajs";
import sqlite from "node-sqlite3-wasm";

const [servers, topic, logText, recordsText, file] = process.argv.slice(2);
const log = Number(logText);
const total = log + Number(recordsText);

const database = new sqlite.Database(file);
database.run("CREATE TABLE delivered (message_id TEXT PRIMARY KEY, channel_id TEXT, sender_id TEXT, content BLOB)");
const insert = database.prepare("INSERT INTO delivered VALUES (?, ?, ?, ?)");

const channels = new Map();
let delivered = [];

function channelOf(channelId) {
  let channel = channels.get(channelId);
  if (channel === undefined) {
    channel = new MessageChannel(channelId, "observer");
    channel.addEventListener(MessageChannelEvent.InMessageDelivered, (event) => delivered.push(event.detail));
    channels.set(channelId, channel);
  }
  return channel;
}

const received = new Map();
let taken = 0;
let startedAt, cpu;

async function take(value) {
  if (taken === log) {
    startedAt = process.hrtime.bigint();
    cpu = process.cpuUsage();
  }
  const message = Message.decode(WakuMessage.decode(value).payload);
  const channel = channelOf(message.channelId);
  received.set(message.messageId, message);
  channel.pushIncomingMessage(message, undefined);
  await channel.processTasks();
  taken += 1;
}

function write() {
  database.run("BEGIN");
  for (const messageId of delivered) {
    const message = received.get(messageId);
    insert.run([messageId, message.channelId, message.senderId, message.content]);
    received.delete(messageId);
  }
  database.run("COMMIT");
  delivered = [];
}

const kafka = new Kafka({ clientId: "bench", brokers: servers.split(","), logLevel: logLevel.ERROR });
const consumer = kafka.consumer({ groupId: `bench-${process.pid}`, maxBytesPerPartition: 4 << 20 });
await consumer.connect();
await consumer.subscribe({ topic, fromBeginning: true });
const done = new Promise((resolve, reject) => {
  consumer
    .run({
      eachBatch: async ({ batch, resolveOffset, heartbeat }) => {
        for (const record of batch.messages) {
          if (taken === total) return;
          await take(record.value);
          resolveOffset(record.offset);
          if (taken % 100 === 0) await heartbeat();
        }
        for (const channel of channels.values()) channel.sweepIncomingBuffer();
        write();
        if (taken === total) resolve();
      },
    })
    .catch(reject);
});
await done;
const seconds = Number(process.hrtime.bigint() - startedAt) / 1e9;
const { user, system } = process.cpuUsage(cpu);
const rows = database.get("SELECT count(*) AS n FROM delivered").n;
console.log(JSON.stringify({ records: total - log, seconds, cpu_s: (user + system) / 1e6, rows: Number(rows) - log }));
process.exit(0);
