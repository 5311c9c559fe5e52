"""Configures segmentation for senders and receivers (Segmentation 0.1, *Configuration*), and computes the sizes that
follow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.settings import check_settings
from reliable_channel.core.wire.segment import DEFAULT_DIALECTS, MAX_TOTAL_SEGMENTS, Dialect
from reliable_channel.core.wire.waku import MAX_ENVELOPE_BYTES

SHARD_ALIGNMENT = 64
"""Leopard works on blocks of 64 bytes, so segments with parity are a multiple of 64 bytes."""

SEGMENT_OVERHEAD_BYTES = 100
"""Maximum bytes of the segment's own fields (Segmentation 0.1, *Deployment Considerations*)."""

ENVELOPE_OVERHEAD_BYTES = 1_024
"""Maximum bytes of the Waku envelope's other fields: content topic, timestamp, meta, a rate limit proof."""

LENGTH_DIALECT_OVERHEAD_BYTES = 128
"""Bytes that ``lip243-length`` subtracts from the segment size before aligning it."""

_RATE_SCALE = 1_000_000
"""Rates are multiplied as whole millionths: as floats, 0.29 of 100 is less than 29."""
_CODECS = ("leopard", "klauspost", "reedsolo")


@dataclass(frozen=True, slots=True)
class SegmentationConfig:
    """Configures the segmentation of a channel; the names are those of the specifications in snake case, sizes are
    bytes, times are ms.

    Sending: ``segment_size_bytes`` (with parity, larger payloads are cut at a multiple of 64), ``enable_reed_solomon``,
    ``parity_rate`` (of the data count, 0 to 1), ``min_parity_segments`` (if the rate is above 0; 0.125 alone gives none
    below eight data segments), ``max_total_segments`` (data and parity), ``max_message_bytes``, ``dialect``, ``codec``.

    Receiving: ``accepted_dialects``; an incomplete set is overdue ``set_timeout_ms`` after its last segment: what is
    missing is asked for, again and again; it is given up ``max_set_lifetime_ms`` after its first one, even if segments
    still arrive; a completed one is remembered for ``completed_memory_ms`` and among at most ``max_completed_sets``,
    one that was given up among as many; memory is bounded in total (``max_open_sets``,
    ``max_buffered_bytes``) and per sender (``…_per_sender``); after a hash mismatch at most ``max_rebuild_attempts``
    choices of segments are tried for a set. ``max_work_per_segment`` bounds the work that one segment can cause, in
    bytes hashed with Keccak-256 (about 3 ns each) or work of equal duration.

    Raises :class:`ConfigurationError` for a value out of range.
    """

    segment_size_bytes: int = 102_400
    enable_reed_solomon: bool = False
    parity_rate: float = 0.125
    min_parity_segments: int = 1
    max_total_segments: int = MAX_TOTAL_SEGMENTS
    max_message_bytes: int = 1_048_576
    dialect: Dialect = Dialect.V01
    codec: str = "leopard"
    accepted_dialects: frozenset[Dialect] = DEFAULT_DIALECTS
    set_timeout_ms: int = 300_000
    max_set_lifetime_ms: int = 86_400_000
    completed_memory_ms: int = 3_600_000
    max_completed_sets: int = 10_000
    max_open_sets: int = 4_096
    max_open_sets_per_sender: int = 256
    max_buffered_bytes: int = 512 * 1_048_576
    max_buffered_bytes_per_sender: int = 64 * 1_048_576
    max_rebuild_attempts: int = 256
    max_work_per_segment: int = 3 * 1_048_576

    def __post_init__(self) -> None:
        check_settings(self, "segmentation.", positive=_POSITIVE)
        if not SHARD_ALIGNMENT <= self.segment_size_bytes <= MAX_ENVELOPE_BYTES:
            raise ConfigurationError(
                f"segment_size_bytes is {self.segment_size_bytes}.",
                f"Choose {SHARD_ALIGNMENT} to {MAX_ENVELOPE_BYTES}.",
            )
        if not 0.0 <= self.parity_rate <= 1.0:
            raise ConfigurationError(
                f"parity_rate is {self.parity_rate}.", "Choose 0 to 1: Leopard codes at most as many parity as data."
            )
        if not 2 <= self.max_total_segments <= MAX_TOTAL_SEGMENTS:
            raise ConfigurationError(
                f"max_total_segments is {self.max_total_segments}.", f"Choose 2 to {MAX_TOTAL_SEGMENTS}."
            )
        if self.codec not in _CODECS:
            raise ConfigurationError(f"codec is {self.codec!r}.", f"Choose one of {', '.join(_CODECS)}.")
        if not self.accepted_dialects:
            raise ConfigurationError("accepted_dialects is empty.", "Name at least one dialect.")
        if self.dialect is Dialect.LIP243_LENGTH:
            self.chunk_size()

    def bare_size(self) -> int:
        """The largest payload (bytes) that is sent as one segment: ``segment_size_bytes``, for ``lip243-length``
        :meth:`chunk_size`, because its receivers rely on it."""
        return self.chunk_size() if self.dialect is Dialect.LIP243_LENGTH else self.segment_size_bytes

    def chunk_size(self) -> int:
        """The payload bytes of every data segment except the last: ``segment_size_bytes``, with parity rounded down to
        a multiple of 64, as Leopard requires. (Padding the shards instead would make parity longer than the data, and
        receivers of other implementations concatenate shards unchanged.) ``lip243-length`` first subtracts 128 and
        always rounds."""
        size = self.segment_size_bytes
        if self.dialect is Dialect.LIP243_LENGTH:
            size = floor64(size - LENGTH_DIALECT_OVERHEAD_BYTES)
        elif self.enable_reed_solomon:
            size = floor64(size)
        if size < SHARD_ALIGNMENT:
            raise ConfigurationError(
                f"segment_size_bytes is {self.segment_size_bytes}.",
                f"Dialect {self.dialect} needs {LENGTH_DIALECT_OVERHEAD_BYTES + SHARD_ALIGNMENT} or more.",
            )
        return size

    def parity_count(self, data_count: int) -> int:
        """The number of parity segments for ``data_count`` data segments: 0 if parity is off, its rate is 0 or
        ``max_total_segments`` would be exceeded; else the floor of rate × data (for ``lip243-length`` the ceiling), but
        at least ``min_parity_segments``. There is never more parity than data. A message of one segment has parity only
        in ``lip243-length``, as all its senders do."""
        if not self.enable_reed_solomon:
            return 0
        scaled = round(self.parity_rate * _RATE_SCALE) * data_count
        if self.dialect is Dialect.LIP243_LENGTH:
            count = min(-(-scaled // _RATE_SCALE), data_count)
        else:
            least = self.min_parity_segments if scaled and data_count > 1 else 0
            count = max(scaled // _RATE_SCALE, min(least, data_count))
        return count if data_count + count <= self.max_total_segments else 0

    def fit_envelope(self, sds_header_bytes: int, encryption_bytes: int = 0) -> SegmentationConfig:
        """Return this configuration with the largest segment size (bytes) that fits an envelope: min(
        ``segment_size_bytes``, 150 000 − largest SDS header − segment, encryption and envelope overhead). Raises
        :class:`ConfigurationError` if no room is left for the segment."""
        overhead = sds_header_bytes + SEGMENT_OVERHEAD_BYTES + encryption_bytes + ENVELOPE_OVERHEAD_BYTES
        size = min(self.segment_size_bytes, MAX_ENVELOPE_BYTES - overhead)
        if size < SHARD_ALIGNMENT:
            raise ConfigurationError(
                f"Headers of {overhead} bytes leave no room for a segment in {MAX_ENVELOPE_BYTES} bytes.",
                "Use a smaller filter or a shorter causal history.",
            )
        return replace(self, segment_size_bytes=size)


_POSITIVE = (
    "max_message_bytes",
    "set_timeout_ms",
    "max_set_lifetime_ms",
    "completed_memory_ms",
    "max_completed_sets",
    "max_open_sets",
    "max_open_sets_per_sender",
    "max_buffered_bytes",
    "max_buffered_bytes_per_sender",
    "max_rebuild_attempts",
    "max_work_per_segment",
)


def floor64(size: int) -> int:
    """``size`` bytes rounded down to a multiple of 64."""
    return size - size % SHARD_ALIGNMENT
