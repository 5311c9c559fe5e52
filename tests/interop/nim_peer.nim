## Runs nim-sds' own ReliabilityManager for test_nim_peer.py: one JSON command a line, one answer a line. Its clock is
## what the commands set (link with -Wl,--wrap=clock_gettime).
import std/[json, tables, sets, strutils, times, options, sequtils, algorithm]
import chronos, results
import sds {.all.}
import in_memory_persistence

{.emit: """/*INCLUDESECTION*/
#include <time.h>
long long vclock_ns = 0;
int __real_clock_gettime(clockid_t c, struct timespec *t);
int __wrap_clock_gettime(clockid_t c, struct timespec *t) {
  if (c == CLOCK_REALTIME && vclock_ns) { t->tv_sec = vclock_ns / 1000000000LL; t->tv_nsec = vclock_ns % 1000000000LL; return 0; }
  return __real_clock_gettime(c, t);
}
""".}
var vclock {.importc: "vclock_ns", nodecl.}: int64

type Part = ref object
  rm: ReliabilityManager
  store: InMemoryStore
  events: JsonNode
  cfg: ReliabilityConfig
  hints: Table[string, seq[byte]]

var parts: Table[string, Part]
var nowMs: int64

proc hex(b: seq[byte]): string =
  for x in b: result.add(toHex(int(x), 2).toLowerAscii)
proc unhex(s: string): seq[byte] =
  for i in countup(0, s.len - 1, 2): result.add(byte(parseHexInt(s[i .. i + 1])))

proc entryJson(e: HistoryEntry): JsonNode = %*{"id": e.messageId, "hint": hex(e.retrievalHint), "sender": $e.senderId}

proc boot(p: Part, me: string) =
  p.rm = newReliabilityManager(me.SdsParticipantID, p.cfg, newInMemoryPersistence(p.store)).get()
  let q = p
  waitFor p.rm.setCallbacks(
    proc(id: SdsMessageID, ch: SdsChannelID) {.gcsafe.} = {.cast(gcsafe).}: q.events.add(%*{"ev": "ready", "id": id}),
    proc(id: SdsMessageID, ch: SdsChannelID) {.gcsafe.} = {.cast(gcsafe).}: q.events.add(%*{"ev": "sent", "id": id}),
    proc(id: SdsMessageID, deps: seq[HistoryEntry], ch: SdsChannelID) {.gcsafe.} =
      {.cast(gcsafe).}: q.events.add(%*{"ev": "missing", "id": id, "deps": deps.map(entryJson)}),
    nil,
    proc(id: SdsMessageID): seq[byte] {.gcsafe.} = {.cast(gcsafe).}: q.hints.getOrDefault(id),
    proc(m: seq[byte], ch: SdsChannelID) {.gcsafe.} = {.cast(gcsafe).}: q.events.add(%*{"ev": "repair", "wire": hex(m)}),
  )

proc brief(p: Part, ch: string): JsonNode =
  result = newJObject()
  if ch in p.rm.channels:
    let c = p.rm.channels[ch]
    result = %*{"lamport": c.lamportTimestamp, "history": c.messageHistory.len, "incoming": c.incomingBuffer.len,
      "outgoing": c.outgoingBuffer.len, "repairOut": c.outgoingRepairBuffer.len, "repairIn": c.incomingRepairBuffer.len}

for line in stdin.lines:
  if line.strip.len == 0: continue
  var r = newJObject()
  try:
    let c = parseJson(line)
    let op = c["op"].getStr
    let me = c{"p"}.getStr
    let ch = c{"ch"}.getStr("ch")
    if me in parts: parts[me].events = newJArray()
    case op
    of "init":
      parts.clear(); nowMs = c["now"].getBiggestInt; vclock = nowMs * 1_000_000
    of "tick":
      nowMs += c["ms"].getBiggestInt; vclock = nowMs * 1_000_000
    of "create":
      let o = c{"options"}
      proc opt(n: string, d: int): int = (if o != nil and o.hasKey(n): o[n].getInt else: d)
      let p = Part(store: newInMemoryStore(), events: newJArray(), cfg: ReliabilityConfig.init(
        bloomFilterCapacity = opt("bloomFilterCapacity", 10000), maxMessageHistory = opt("maxMessageHistory", 1000),
        maxCausalHistory = opt("maxCausalHistory", 10),
        repairTMin = initDuration(milliseconds = opt("repairTMinMs", 30000)),
        repairTMax = initDuration(milliseconds = opt("repairTMaxMs", 300000))))
      boot(p, me); parts[me] = p
      discard waitFor p.rm.ensureChannel(ch)
    of "restart": # same persistence, a new manager
      let p = parts[me]
      waitFor p.rm.cleanup(); boot(p, me); discard waitFor p.rm.ensureChannel(ch)
    of "hint": parts[me].hints[c["id"].getStr] = unhex(c["hint"].getStr)
    of "send":
      let w = waitFor parts[me].rm.wrapOutgoingMessage(unhex(c["payload"].getStr), c["id"].getStr, ch)
      if w.isErr: r["error"] = %($w.error) else: r["wire"] = %hex(w.get)
    of "receive":
      let w = waitFor parts[me].rm.unwrapReceivedMessage(unhex(c["wire"].getStr))
      if w.isErr: r["error"] = %($w.error)
      else:
        r["content"] = %hex(w.get.message); r["missing"] = %w.get.missingDeps.map(entryJson)
    of "mark": 
      let w = waitFor parts[me].rm.markDependenciesMet(c["ids"].getElems.mapIt(it.getStr), ch)
      if w.isErr: r["error"] = %($w.error)
    of "sweepRepair": discard waitFor parts[me].rm.runRepairSweep()
    of "sweep":
      discard waitFor parts[me].rm.checkUnacknowledgedMessages(ch); waitFor parts[me].rm.cleanBloomFilter(ch)
    of "state":
      let x = parts[me].rm.channels[ch]
      var outIds, inIds, ro, ri: seq[string]
      for u in x.outgoingBuffer: outIds.add(u.message.messageId)
      for k in x.incomingBuffer.keys: inIds.add(k)
      for k, v in x.outgoingRepairBuffer: ro.add(k & "@" & $(v.minTimeRepairReq.toUnixFloat * 1000).int64)
      for k, v in x.incomingRepairBuffer: ri.add(k & "@" & $(v.minTimeRepairResp.toUnixFloat * 1000).int64)
      inIds.sort; ro.sort; ri.sort
      r["state"] = %*{"history": toSeq(x.messageHistory.keys), "outgoing": outIds, "incoming": inIds, "repairOut": ro, "repairIn": ri,
        "filter": hex(serializeBloomFilter(x.bloomFilter.filter).get)}
    of "decode":
      let m = deserializeMessage(unhex(c["wire"].getStr))
      if m.isErr: r["error"] = %($m.error)
      else:
        let v = m.get
        r = %*{"id": v.messageId, "lamport": v.lamportTimestamp, "sender": $v.senderId, "channel": v.channelId,
          "history": v.causalHistory.map(entryJson), "repair": v.repairRequest.map(entryJson), "content": hex(v.content), "bloom": v.bloomFilter.len}
    else: r["error"] = %("unknown op " & op)
    if me in parts:
      r["events"] = parts[me].events
      r["brief"] = brief(parts[me], ch)
  except CatchableError as e:
    r["error"] = %(e.msg)
  stdout.writeLine($r); stdout.flushFile()
