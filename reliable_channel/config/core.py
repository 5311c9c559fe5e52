"""The sections of the protocol core are its own frozen dataclasses (protocol.md §3, §5, §6).

The core defines names, defaults and ranges once and knows nothing of pydantic; here pydantic is told to refuse unknown
keys in them. Importing this module is enough.
"""

from __future__ import annotations

from pydantic import ConfigDict

from reliable_channel.rate_limit import RateLimitConfig
from reliable_channel.sds.config import SdsConfig
from reliable_channel.segmentation.config import SegmentationConfig
from reliable_channel.wire.bloom import FilterFormat

for _core in (SegmentationConfig, SdsConfig, FilterFormat, RateLimitConfig):
    # The attribute by which pydantic configures a dataclass that is not its own.
    setattr(_core, "__pydantic_config__", ConfigDict(extra="forbid"))  # noqa: B010 - the core declares no such thing
