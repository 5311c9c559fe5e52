"""The sections of the protocol core are its own frozen dataclasses (protocol.md §3, §5, §6).

The core defines names, defaults and ranges once and knows nothing of pydantic; here pydantic is told to refuse unknown
keys in them. Importing this module is enough.
"""

from __future__ import annotations

from pydantic import ConfigDict

from reliable_channel.config.section import Count, PositiveMilliseconds, Section
from reliable_channel.sds.config import SdsConfig
from reliable_channel.segmentation.config import SegmentationConfig
from reliable_channel.wire.bloom import FilterFormat

for _core in (SegmentationConfig, SdsConfig, FilterFormat):
    # The attribute by which pydantic configures a dataclass that is not its own.
    setattr(_core, "__pydantic_config__", ConfigDict(extra="forbid"))  # noqa: B010 - the core declares no such thing


class RateLimitSettings(Section):
    """The rate limit of RLN (protocol.md §6)."""

    enabled: bool = False
    epoch_size_ms: PositiveMilliseconds = 600_000
    messages_per_epoch: Count = 1
    count_control_traffic: bool = False
