"""Lists the content topics that carry reliable channels, with their SDS family, segmentation dialects and keys.

All other traffic in ``waku.envelopes`` is plain Waku traffic: kept, never an error (14/WAKU2-MESSAGE). Presets of the
Reliable Channel API replace defaults, not what the configuration sets.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from reliable_channel.config.section import Bytes, Count, Milliseconds, Section
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.wire.sds import HistoryLayout, WireFamily
from reliable_channel.core.wire.segment import DEFAULT_DIALECTS, Dialect


class Peers(StrEnum):
    """Who else takes part in the channels of a content topic."""

    SEEDS = "seeds"
    JS_WAKU = "js-waku"
    LOGOS_DELIVERY = "logos-delivery"
    NIM_SDS = "nim-sds"


WIRE_OF_PEERS = {
    Peers.SEEDS: {"family": WireFamily.SPEC, "dialect": Dialect.V01},
    Peers.JS_WAKU: {"family": WireFamily.SPEC, "dialect": Dialect.V01},
    Peers.LOGOS_DELIVERY: {
        "family": WireFamily.NIM,
        "dialect": Dialect.LIP243_LENGTH,
        "encryption_layer": EncryptionLayer.INSIDE_SDS,
    },
    Peers.NIM_SDS: {"family": WireFamily.NIM, "dialect": Dialect.V01, "history_layout": HistoryLayout.IDS},
}
"""What these peers write. js-waku has no segmentation: it sends and reads bare payloads, as v0.1 has them."""


class ChannelTopic(Section):
    """One content topic, or a pattern of them (``*`` matches anything), that carries channels.

    ``peers`` chooses ``family``, ``history_layout``, ``dialect`` and ``encryption_layer`` unless they are set
    themselves. ``family``: the wire family of SDS messages; with ``auto`` the jobs read each message in the family that
    it has, and participants write ``spec``. ``history_layout``: how participants write histories in the nim family.
    ``dialect``: the dialect of segments that participants write; unset: that of the section ``segmentation``.
    ``dialects``: those that are read.
    ``decryption_key_files``: files or environment variables (``env:NAME``) that executors and participants can read,
    several for rotation; keys are never written in the configuration file. ``encryption_layer``: what participants
    encrypt with them, whole SDS messages (``around_sds``) or their contents (``inside_sds``); both are read, SDS
    messages in the clear without content only with ``inside_sds``.
    """

    content_topic: str = Field(min_length=1, max_length=512)
    pubsub_topic: str | None = None
    peers: Peers | None = None
    family: WireFamily | Literal["auto"] = "auto"
    history_layout: HistoryLayout = HistoryLayout.ENTRIES
    dialect: Dialect | None = None
    dialects: frozenset[Dialect] = DEFAULT_DIALECTS
    decryption_key_files: tuple[str, ...] = ()
    encryption_layer: EncryptionLayer = EncryptionLayer.AROUND_SDS
    store_plaintext: bool = True

    @property
    def is_pattern(self) -> bool:
        """Whether it matches other content topics than that of its own name."""
        return any(sign in self.content_topic for sign in "*?[")

    @property
    def families(self) -> tuple[WireFamily, ...]:
        """The families that the jobs read. The first is the one in which participants write."""
        return tuple(WireFamily) if self.family == "auto" else (self.family,)

    @model_validator(mode="before")
    @classmethod
    def _choose_for_peers(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("peers") not in list(Peers):
            return values
        return {**WIRE_OF_PEERS[Peers(values["peers"])], **values}


class Preset(StrEnum):
    """Whose rules a participant follows; unset: this project's."""

    APRIL_2026 = "april_2026"
    MARCH_2026 = "march_2026"
    FIRST_REVISION = "first_revision"


class ParticipantSettings(Section):
    """The behaviour of this project's participants: commands, ``jobs/send.py`` and the channels of ``api serve``.

    ``preset``: a revision of the Reliable Channel API whose values count where ``sds``, ``rate_limit`` and this section
    give none. ``process_task_min_elapse_ms``: incoming messages are processed in batches at least this
    far apart. ``verify_chunk_chain``: chunks are used only in a verified chain (the March 2026 revision).
    ``delivery_error_event``: a send that was dispatched and is not acknowledged ends in
    ``reliable:message:delivery-error`` (LIP-173); if false in ``reliable:message:send-error``. ``max_queued_bytes``:
    how many bytes may wait for the node before ``send`` blocks, for at most ``send_timeout_ms``.
    """

    preset: Preset | None = None
    query_window_ms: Milliseconds = 86_400_000
    process_task_min_elapse_ms: Milliseconds = 0
    verify_chunk_chain: bool = False
    delivery_error_event: bool = True
    max_queued_bytes: Bytes = 64 * 1024 * 1024
    send_timeout_ms: Milliseconds = 60_000
    max_journal_entries: Count = 10_000
    max_journal_bytes: Bytes = 16 * 1024 * 1024


def _read_topic(value: Any) -> Any:
    return {"content_topic": value} if isinstance(value, str) else value


class ChannelsSettings(Section):
    """The channels of this installation; the first entry that matches a content topic counts."""

    content_topics: tuple[Annotated[ChannelTopic, BeforeValidator(_read_topic)], ...] = (
        ChannelTopic(content_topic="/reliable-channel/1/*/proto"),
    )
    participant_id: str | None = Field(
        default=None, min_length=1, description="observe as this participant; unset observes everybody"
    )

    def topic_for(self, content_topic: str, pubsub_topic: str | None = None) -> ChannelTopic | None:
        """The entry for a content topic, or None for plain Waku traffic."""
        for topic in self.content_topics:
            if topic.pubsub_topic not in (None, pubsub_topic):
                continue
            if fnmatchcase(content_topic, topic.content_topic):
                return topic
        return None

    def pattern_for(self, content_topic: str, pubsub_topic: str | None = None) -> str | None:
        """The entry for a content topic as text, if it is a pattern: anybody can invent topics that match one."""
        topic = self.topic_for(content_topic, pubsub_topic)
        if topic is None or not topic.is_pattern:
            return None
        return f"{topic.pubsub_topic or ''} {topic.content_topic}"

    def list_named(self) -> list[str]:
        """The content topics that are configured by their names."""
        return [topic.content_topic for topic in self.content_topics if not topic.is_pattern]


def apply_preset(given: dict[str, Any]) -> dict[str, Any]:
    """The sections with the values of ``participant.preset``, where it is a known name, below their own."""
    participant = given.get("participant")
    name = participant.get("preset") if isinstance(participant, dict) else getattr(participant, "preset", None)
    if name not in list(Preset):
        return given
    merged = dict(given)
    for section, values in _list_sections(Preset(name)).items():
        own = given.get(section, {})
        if isinstance(own, dict):
            merged[section] = {**values, **own}
    return merged


def _list_sections(preset: Preset) -> dict[str, dict[str, Any]]:
    """What a preset has other than the default, by section of the configuration file."""
    # Only who names a preset pays for loading the channels.
    from reliable_channel.channel.config import ReliableChannelConfig, ReliableChannelOptions

    config = {
        Preset.APRIL_2026: ReliableChannelConfig.of_april_2026,
        Preset.MARCH_2026: ReliableChannelConfig.of_march_2026,
        Preset.FIRST_REVISION: ReliableChannelOptions().config,
    }[preset]()
    changed = _find_changes(config, ReliableChannelConfig())
    sections: dict[str, dict[str, Any]] = {
        name: changed.pop(name) for name in ("sds", "rate_limit", "segmentation") if name in changed
    }
    return {**sections, "participant": changed}


def _find_changes(config: Any, default: Any) -> dict[str, Any]:
    changes = {}
    for field in fields(config):
        value, usual = getattr(config, field.name), getattr(default, field.name)
        if value != usual:
            changes[field.name] = _find_changes(value, usual) if is_dataclass(value) else value
    return changes
