"""Makes the frozen dataclasses of the protocol core usable as configuration sections.

The core defines names, defaults and ranges once and does not depend on pydantic; this module makes pydantic refuse
unknown keys in them. Importing it is enough.
"""

from __future__ import annotations

from pydantic import ConfigDict

from reliable_channel.core.rate_limit import RateLimitConfig
from reliable_channel.core.sds.config import SdsParameters
from reliable_channel.core.segmentation.config import SegmentationConfig
from reliable_channel.core.wire.bloom import FilterFormat

for _core in (SegmentationConfig, SdsParameters, FilterFormat, RateLimitConfig):
    # The attribute by which pydantic configures a dataclass that is not its own.
    setattr(_core, "__pydantic_config__", ConfigDict(extra="forbid"))  # noqa: B010 - the core declares no such thing
