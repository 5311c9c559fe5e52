"""A channel that is opened over HTTP follows the settings of its content topic, as one of the command line does."""

from __future__ import annotations

import base64
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from reliable_channel.channel import AesGcm, ReliableChannelConfig, SqlitePersistence
from reliable_channel.config import Settings, load
from reliable_channel.core.aes_gcm import EncryptionLayer
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.sds import SdsChannel
from reliable_channel.core.wire._pb import sds_pb2 as pb
from reliable_channel.core.wire.bloom import FilterFamily
from reliable_channel.core.wire.malformed import Malformed
from reliable_channel.core.wire.sds import HistoryLayout, WireFamily, decode_sds_message
from reliable_channel.core.wire.segment import Dialect
from reliable_channel.messaging.rest.app import create_app
from reliable_channel.runtime.messaging import channel_config
from reliable_channel.runtime.participant import topic_config
from tests.support.messaging_world import World

KEYED = "/app/1/keyed/proto"
PLAIN = "/app/1/plain/proto"
NIM = "/app/1/nim/proto"


@pytest.fixture
def configured(tmp_path: Path) -> Settings:
    key = tmp_path / "key"
    key.write_text("ab" * 32)
    topics = [
        {"content_topic": KEYED, "decryption_key_files": [str(key)]},
        {"content_topic": NIM, "family": "nim", "dialects": ["lip243-length"]},
        PLAIN,
    ]
    return load("local", channels={"content_topics": topics}, paths={"run_dir": str(tmp_path / "run")})


def client_of(world: World, settings: Settings) -> TestClient:
    channels = partial(channel_config, settings)
    app = create_app(world.node, channels=channels, clock=world.clock, threaded=False, run_node=False)
    return TestClient(app, base_url="http://localhost")


def test_a_topic_with_keys_carries_no_plaintext(world: World, configured: Settings) -> None:
    sent: list[bytes] = []
    world.network.link = lambda _sender, _receiver, message: (sent.append(message.payload), (0.0,))[1]
    stranger = world.network.node("stranger")
    stranger.start()
    with client_of(world, configured) as client:
        handle = client.post("/channels", json={"channelId": "c", "contentTopic": KEYED}).json()["id"]
        payload = base64.b64encode(b"a secret").decode()
        assert client.post(f"/channels/{handle}/send", json={"payload": payload}).status_code == 200
        for _ in range(4):
            client.app.state.sessions.step()  # type: ignore[attr-defined]
            world.run(500)
    assert sent
    assert not any(b"a secret" in data for data in sent)
    assert all(isinstance(decode_sds_message(data), Malformed) for data in sent)


def test_one_sender_opens_many_channels(world: World, configured: Settings) -> None:
    with client_of(world, configured) as client:
        for number in range(64):
            body = {"channelId": f"channel {number}", "contentTopic": PLAIN, "senderId": "alice"}
            assert client.post("/channels", json=body).status_code == 200


def test_a_sender_that_another_process_uses_is_named_without_paths_or_process_ids(
    world: World, configured: Settings
) -> None:
    elsewhere = SqlitePersistence(Path(configured.paths.run_dir) / "channels.sqlite")
    elsewhere.acquire("alice")
    with client_of(world, configured) as client:
        body = {"channelId": "c", "contentTopic": PLAIN, "senderId": "alice"}
        answer = client.post("/channels", json=body)
    elsewhere.close()
    assert (answer.status_code, answer.json()) == (
        409,
        {"error": "Sender 'alice' is in use elsewhere. Take another sender id."},
    )


def test_participants_read_keys_from_the_environment_as_the_jobs_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOBBY_KEY", "ab" * 32)
    topic = {"content_topic": KEYED, "decryption_key_files": ["env:LOBBY_KEY"]}
    hook = topic_config(load("local", channels={"content_topics": [topic]}), KEYED).encryption
    assert isinstance(hook, AesGcm)
    sealed = hook.for_topics("p", "c").encrypt(b"hello")
    assert AesGcm(b"\xab" * 32).for_topics("p", "c").decrypt(sealed) == b"hello"


def test_a_key_that_cannot_be_read_is_the_servers_fault_and_keeps_its_place_to_itself(
    world: World, configured: Settings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "key").unlink()
    with client_of(world, configured) as client:
        answer = client.post("/channels", json={"channelId": "c", "contentTopic": KEYED})
    assert (answer.status_code, answer.json()) == (
        503,
        {"error": "The server cannot keep this channel. Its log says why."},
    )
    assert str(tmp_path / "key") in caplog.text


def test_the_channels_of_a_process_share_a_database_until_the_last_one_closes(tmp_path: Path) -> None:
    place = tmp_path / "channels.sqlite"
    first, second = SqlitePersistence.share(place), SqlitePersistence.share(place)
    assert first is second
    release = first.acquire("alice")
    second.acquire("alice")()
    first.close()
    assert second.sender_id()
    release()
    second.close()
    third = SqlitePersistence.share(place)
    assert third is not first
    third.close()


def test_family_filter_and_dialect_of_a_topic_belong_together(configured: Settings) -> None:
    config = topic_config(configured, NIM)
    assert (config.sds.wire_family, config.sds.filter_format.family) == (WireFamily.NIM, FilterFamily.NIM)
    assert config.segmentation.dialect is Dialect.LIP243_LENGTH
    plain = topic_config(configured, PLAIN)
    assert (plain.sds.wire_family, plain.sds.filter_format.family) == (WireFamily.SPEC, FilterFamily.SPEC)
    assert plain.segmentation.dialect is Dialect.V01


def test_the_name_of_the_peers_chooses_what_is_on_the_wire(configured: Settings) -> None:
    topics = [{"content_topic": NIM, "peers": "logos-delivery"}, {"content_topic": PLAIN, "peers": "js-waku"}]
    settings = load("local", channels={"content_topics": topics}, segmentation={"dialect": "lip243"})
    nim, plain = topic_config(settings, NIM), topic_config(settings, PLAIN)
    assert (nim.sds.wire_family, nim.segmentation.dialect) == (WireFamily.NIM, Dialect.LIP243_LENGTH)
    assert (plain.sds.wire_family, plain.segmentation.dialect) == (WireFamily.SPEC, Dialect.V01)
    assert (nim.encryption_layer, plain.encryption_layer) == (EncryptionLayer.INSIDE_SDS, EncryptionLayer.AROUND_SDS)
    # logos-delivery cuts payloads into chunks of this size, and its receivers rely on it.
    assert nim.segmentation.chunk_size() == 102_272


def test_participants_write_histories_as_their_peers_read_them() -> None:
    for peers, layout in (("nim-sds", HistoryLayout.IDS), ("logos-delivery", HistoryLayout.ENTRIES)):
        config = topic_config(load("local", channels={"content_topics": [{"content_topic": NIM, "peers": peers}]}), NIM)
        assert (config.sds.wire_family, config.sds.history_layout) == (WireFamily.NIM, layout)
        alice = SdsChannel("talk", "alice", config.sds)
        alice.tick(0)
        wires = [alice.send(text, 10_000).outgoing[0] for text in (b"first", b"second")]
        data, before = wires[1].data, wires[0].message.message_id
        if layout is HistoryLayout.IDS:
            assert list(pb.NimIdsMessage.FromString(data).causal_history) == [before]
        else:
            assert [each.message_id for each in pb.NimMessage.FromString(data).causal_history] == [before]


def test_a_setting_of_its_own_stands_over_the_name_of_the_peers() -> None:
    topic = {"content_topic": NIM, "peers": "logos-delivery", "dialect": "v0.1"}
    config = topic_config(load("local", channels={"content_topics": [topic]}), NIM)
    assert (config.sds.wire_family, config.segmentation.dialect) == (WireFamily.NIM, Dialect.V01)


def test_a_file_can_set_what_builds_of_logos_delivery_before_september_2026_read(tmp_path: Path) -> None:
    """docs/howto/logos-delivery.md: the family alone, since no file sets the dialect."""
    (tmp_path / "old.yaml").write_text(f"channels: {{content_topics: [{{content_topic: {NIM}, family: nim}}]}}")
    config = topic_config(load(tmp_path / "old.yaml"), NIM)
    assert (config.sds.wire_family, config.sds.history_layout) == (WireFamily.NIM, HistoryLayout.ENTRIES)
    assert (config.segmentation.dialect, config.encryption_layer) == (Dialect.V01, EncryptionLayer.AROUND_SDS)


def test_unknown_peers_are_refused_with_those_that_are_known() -> None:
    with pytest.raises(ConfigurationError, match="logos-delivery"):
        load("local", channels={"content_topics": [{"content_topic": NIM, "peers": "logos"}]})


DECIDED_ELSEWHERE = {
    "encryption",
    "encryption_layer",
    "history_backend",
    "database",
    "persistence",
    "auto_start",
    "query_on_connect",
}
"""By the keys of the content topic, by ``store.nodes``, and by whoever opens the channel."""


@pytest.mark.parametrize(
    "name", [one.name for one in fields(ReliableChannelConfig) if one.name not in DECIDED_ELSEWHERE]
)
def test_every_option_of_a_participant_has_a_key(name: str) -> None:
    settings: dict[str, tuple[str, str, object]] = {
        "segmentation": ("segmentation", "segment_size_bytes", 1_000),
        "sds": ("sds", "max_retransmissions", 3),
        "rate_limit": ("rate_limit", "messages_per_epoch", 7),
        "verify_chunk_chain": ("participant", name, True),
        "delivery_error_event": ("participant", name, False),
    }
    section, key, value = settings.get(name, ("participant", name, 12_345))
    found = getattr(topic_config(load("local", **{section: {key: value}}), PLAIN), name)
    assert (found if section == "participant" else getattr(found, key)) == value
