"""Applies the presets of the Reliable Channel API by name: they replace defaults, not what the configuration sets."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any


class Preset(StrEnum):
    """Whose rules a participant follows; unset: this project's."""

    APRIL_2026 = "april_2026"
    MARCH_2026 = "march_2026"
    FIRST_REVISION = "first_revision"


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
