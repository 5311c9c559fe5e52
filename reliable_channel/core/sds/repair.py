"""Implements SDS-R: requests missing messages from other participants and answers their requests (docs/spec/sds.md,
*Repair*)."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from itertools import islice

from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.wire.sds import HistoryEntry, SdsMessage, WireFamily, encode_sds_message


def repair_hash(text: str) -> int:
    """Compute h(x): the first 8 bytes of SHA-256 of the UTF-8 text, big-endian."""
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big")


def request_offset(me: str, message_id: str, t_min_ms: int, t_max_ms: int) -> int:
    """How long to wait before asking for a missing message (ms): T_req − now."""
    return repair_hash(me + message_id) % (t_max_ms - t_min_ms) + t_min_ms


def response_offset(me: str, sender_id: str, message_id: str, t_max_ms: int) -> int:
    """How long to wait before rebroadcasting a message (ms): T_resp − now. The sender itself answers at once."""
    return (repair_hash(me) ^ repair_hash(sender_id)) * repair_hash(message_id) % t_max_ms


def in_response_group(me: str, sender_id: str, message_id: str, groups: int) -> bool:
    """Whether this participant is in the response group for a message of ``sender_id``."""
    return groups <= 1 or repair_hash(me + message_id) % groups == repair_hash(sender_id + message_id) % groups


MANY_REQUESTS = 50
"""If more requests are due, those whose ids different senders name take turns."""

_PER_ENTRY = 16
"""Tags and lengths of a history entry, rounded up."""


class Repair:
    """Schedules own requests by T_req and own answers by T_resp, and keeps the original bytes that answers need."""

    def __init__(self, config: SdsParameters, participant_id: str) -> None:
        self._config = config
        self._me = participant_id
        self._is_nim = config.wire_family is WireFamily.NIM
        self.requests: dict[str, tuple[int, str | None]] = {}
        """Missing id → (T_req, its sender if known)."""
        self.given_way: dict[str, str | None] = {}
        """Missing id whose request another participant's has removed → its sender if known."""
        self.responses: dict[str, int] = {}
        """Id → T_resp."""
        self.answers_since = 0
        """Start (ms) of the current period of ``repair_t_max_ms``."""
        self.answers: Counter[str] = Counter()
        """Who asks → the number of answers planned in it."""
        # Heaps, in which the entries of requests and answers that were cancelled stay until they come up.
        self._request_timers: list[tuple[int, str]] = []
        self._timers: list[tuple[int, str]] = []
        self.kept: dict[str, bytes | SdsMessage] = {}
        """Id → original bytes, or the decoded message if the caller passed none (it is encoded on demand)."""
        self.sizes: dict[bool, OrderedDict[str, int]] = {False: OrderedDict(), True: OrderedDict()}
        """Of others' messages, and of own ones (``True``): kept id → the bytes it counts, oldest first."""
        self._bytes = {False: 0, True: 0}

    # ---- own requests --------------------------------------------------------------------------------------------

    def want(self, message_id: str, sender_id: str | None, now: int) -> None:
        """Plan a request for a missing message at T_req, unless another participant asks first."""
        self.restore_request(message_id, now + self._request_offset(message_id), sender_id)

    def want_again(self, now: int) -> None:
        """Plan anew the requests that others' have removed: a message arrived that has to wait."""
        for message_id, sender_id in sorted(self.given_way.items()):  # in the same order after a restart
            self.want(message_id, sender_id, now)

    def unwant(self, message_id: str) -> None:
        """Cancel the request for a message that arrived or was declared lost."""
        self.requests.pop(message_id, None)
        self.given_way.pop(message_id, None)

    def restore_request(self, message_id: str, due: int, sender_id: str | None) -> None:
        """Restore a planned request."""
        self.given_way.pop(message_id, None)
        self.requests[message_id] = (due, sender_id)
        heapq.heappush(self._request_timers, (due, message_id))
        # A stranger's messages may cancel each request and want it again, many times before it is due.
        if len(self._request_timers) > 2 * len(self.requests) + 100:
            self._request_timers = [(at, key) for key, (at, _) in self.requests.items()]
            heapq.heapify(self._request_timers)

    def request_is_due(self, now: int) -> bool:
        """Whether a message sent now would carry a request."""
        timers = self._request_timers
        while timers:
            due, message_id = timers[0]
            wanted = self.requests.get(message_id)
            if wanted is not None and wanted[0] == due:
                return due <= now
            heapq.heappop(timers)
        return False

    def list_due(self, now: int, find_namer: Callable[[str], str]) -> list[str]:
        """The ids whose requests are due, in the order in which messages sent now carry them: lowest T_req first.
        ``find_namer``: id → the sender that its request is made for, since it names the id."""
        due = sorted([(at, message_id) for message_id, (at, _) in self.requests.items() if at <= now])
        if len(due) > MANY_REQUESTS:
            # One envelope names a thousand ids that never existed, and a message asks for three: in their order, an id
            # that came after them would be asked for in an hour.
            firsts: dict[str, tuple[int, str]] = {}
            for each in due:
                firsts.setdefault(find_namer(each[1]), each)
            due = [*dict.fromkeys([*firsts.values(), *due])]
        return [message_id for _, message_id in due]

    def make_requests(self, due: Iterator[str], now: int) -> list[HistoryEntry]:
        """The requests that a message sent now carries, the next of :meth:`list_due`. Each is repeated while it is
        unanswered."""
        entries: list[HistoryEntry] = []
        for message_id in islice(due, self._config.max_repair_requests_per_message):
            sender_id = self.requests[message_id][1]
            self.restore_request(message_id, self._repeat_at(message_id, now), sender_id)
            entries.append(HistoryEntry(message_id, None, sender_id))
        return entries

    def cancel_request(self, message_id: str, now: int) -> bool:
        """Cancel an own request because another participant asks. Returns whether an own request was planned."""
        wanted = self.requests.pop(message_id, None)
        if wanted is None:
            return False
        # SDS-R removes it, until a message arrives that has to wait. With nim-sds the other's request may go
        # unanswered, too, so there it returns when that can no longer be answered.
        if self._is_nim:
            self.restore_request(message_id, self._repeat_at(message_id, now), wanted[1])
        else:
            self.given_way[message_id] = wanted[1]
        return True

    # ---- own answers ---------------------------------------------------------------------------------------------

    def schedule(self, message_id: str, sender_id: str, by: str, now: int) -> int | None:
        """Plan a rebroadcast for ``by``; returns T_resp, or ``None`` if this participant must not answer, already will,
        or has recently planned ``max_repair_answers``: then those who have less than an equal share of that still get
        some, and all together twice as many at most."""
        config = self._config
        if message_id in self.responses or message_id not in self.kept:
            return None
        if not in_response_group(self._me, sender_id, message_id, config.repair_response_groups):
            return None
        # Requests are free, answers cost the answerer's rate limit: a stranger must neither spend it nor take it all.
        if now - self.answers_since >= config.repair_t_max_ms:
            self.answers_since, self.answers = now, Counter()
        most, planned, own = config.max_repair_answers, self.answers.total(), self.answers[by]
        if planned >= most and (own >= max(1, most // len({*self.answers, by})) or planned >= 2 * most):
            return None
        self.answers[by] += 1
        due = now + response_offset(self._me, sender_id, message_id, config.repair_t_max_ms)
        self.restore_response(message_id, due)
        return due

    def restore_response(self, message_id: str, due: int) -> None:
        """Restore a planned rebroadcast."""
        self.responses[message_id] = due
        heapq.heappush(self._timers, (due, message_id))

    def cancel(self, message_id: str) -> bool:
        """Cancel an own answer because another participant has answered; returns whether one was planned."""
        return self.responses.pop(message_id, None) is not None

    def next_due(self) -> int | None:
        """When the next answer is due."""
        while self._timers:
            due, message_id = self._timers[0]
            if self.responses.get(message_id) == due:
                return due
            heapq.heappop(self._timers)
        return None

    def run(self, now: int) -> Iterator[tuple[str, bytes | None]]:
        """Return the answers due at ``now``: id and original bytes, ``None`` if they had to make room."""
        while self.next_due() == now:
            message_id = heapq.heappop(self._timers)[1]
            del self.responses[message_id]
            yield message_id, self.original(message_id) if message_id in self.kept else None

    def original(self, message_id: str) -> bytes:
        """The bytes of a kept message."""
        kept = self.kept[message_id]
        if isinstance(kept, SdsMessage):
            kept = self.kept[message_id] = encode_sds_message(kept, self._config.wire_family)
        return kept

    # ---- original bytes ------------------------------------------------------------------------------------------

    def keep(self, message_id: str, message: bytes | SdsMessage, size: int | None = None, *, own: bool = False) -> None:
        """Keep a message for answers. Beyond the bound the oldest is dropped, of own messages or of others', whichever
        take more: others' messages have other holders too, own ones perhaps only this. One that is about to be sent as
        an answer is kept for that while it is among the older half."""
        size = _estimate_size(message) if size is None else size
        if message_id in self.kept or size > self._config.max_kept_bytes:
            return
        held = self._bytes
        self.kept[message_id] = message
        self.sizes[own][message_id] = size
        held[own] += size
        while held[False] + held[True] > self._config.max_kept_bytes:
            larger = held[True] > held[False]
            sizes = self.sizes[larger]
            dropped = next(iter(sizes))
            if dropped in self.responses:
                # The newer half is safe from a stranger who asks for all that is old.
                older = islice(sizes, len(sizes) // 2)
                dropped = next((each for each in older if each not in self.responses), dropped)
            held[larger] -= sizes.pop(dropped)
            del self.kept[dropped]

    def renew(self, message_id: str) -> None:
        """Keep a message like one that has just come: from its delivery on histories name it, and others ask for it."""
        if message_id in self.sizes[False]:
            self.sizes[False].move_to_end(message_id)

    def forget(self, message_id: str) -> None:
        """Forget a message because another one with its id has won."""
        self.responses.pop(message_id, None)
        if self.kept.pop(message_id, None) is not None:
            own = message_id in self.sizes[True]
            self._bytes[own] -= self.sizes[own].pop(message_id)

    def _repeat_at(self, message_id: str, now: int) -> int:
        """When to repeat a request that is sent at ``now``: it or its answer may be lost."""
        # nim-sds sets the time of its answer anew at every request: whoever repeats one sooner is never answered.
        # Others answer the first, however often it is repeated.
        if self._is_nim:
            return now + self._config.repair_t_max_ms + self._request_offset(message_id)
        return now + max(1, self._config.repair_t_min_ms)

    def _request_offset(self, message_id: str) -> int:
        return request_offset(self._me, message_id, self._config.repair_t_min_ms, self._config.repair_t_max_ms)


def _estimate_size(message: bytes | SdsMessage) -> int:
    """The bytes that a message counts; an estimate if it is not encoded yet."""
    if isinstance(message, bytes):
        return len(message)
    entries = message.causal_history + message.repair_request
    size = len(message.content or b"") + len(message.bloom_filter or b"") + 512 + _PER_ENTRY * len(entries)
    texts = [message.message_id, message.sender_id]
    for entry in entries:
        texts.append(entry.message_id)
        if entry.sender_id is not None:
            texts.append(entry.sender_id)
        if entry.retrieval_hint is not None:
            size += len(entry.retrieval_hint)
    text = "".join(texts)
    return size + (len(text) if text.isascii() else len(text.encode()))
