"""What the README and the page about Kafka tell to type exists and works."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reliable_channel.cli.app import build
from reliable_channel.config import load

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(?:sh)?\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TARGETS = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("page", ["README.md", "docs/howto/kafka.md"])
def test_the_variables_for_an_own_kafka_are_read(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exports = dict(re.findall(r"^export (\w+)=(.*)$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE))
    for name, value in exports.items():
        monkeypatch.setenv(name, value.strip("'"))
    settings = load("local")
    assert settings.kafka.bootstrap_servers == "kafka-1:9093,kafka-2:9093"
    mechanism = settings.kafka.spark_options().get("kafka.sasl.mechanism")
    assert mechanism == exports.get("RELIABLE_CHANNEL__KAFKA__SECURITY__SASL_MECHANISM")
    assert settings.channels.topic_for("/my-app/1/x/proto") is not None
    assert settings.channels.topic_for("/reliable-channel/1/x/proto") is None


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z0-9-]+)", README))))
def test_every_make_target_exists(target: str) -> None:
    assert target in TARGETS


@pytest.mark.parametrize("command", sorted(set(re.findall(r"reliable-channel (?!is)([a-z]+)", "".join(BLOCKS)))))
def test_every_command_exists(command: str) -> None:
    app = build()
    names = {group.name for group in app.registered_groups}
    names |= {entry.name or entry.callback.__name__ for entry in app.registered_commands if entry.callback}
    assert command in names


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)", README))))
def test_every_link_leads_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_every_make_target_has_help() -> None:
    described = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert described == TARGETS
