"""Reads and validates the rules of ``conf/alerts.yaml``; an invalid rule is rejected with an error that names it."""

from __future__ import annotations

from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, TypeAdapter, ValidationError, field_validator

from reliable_channel.config.loading import find_shipped, parse_yaml
from reliable_channel.config.section import Count, PositiveMilliseconds, Section
from reliable_channel.core.errors import ConfigurationError
from reliable_channel.core.wire.malformed import Reason

RULES_FILE = "alerts.yaml"
MOST_RULES = 200
HOUR_MS = 3_600_000

Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")]
Share = Annotated[float, Field(ge=0, lt=1, description="share, 0 to 1")]
Window = Annotated[PositiveMilliseconds, Field(le=100 * 365 * 24 * HOUR_MS)]
Severity = Literal["info", "warning", "critical"]


class _Rule(Section):
    """The fields that all rules share. ``window_ms``: how far back from the recorded clock a rule looks."""

    alert: Name
    severity: Severity = "warning"
    window_ms: Window = HOUR_MS


class _Above(_Rule):
    above: Annotated[float, Field(ge=0, allow_inf_nan=False)]

    @property
    def threshold(self) -> float:
        """Raised while the measured value is above it."""
        return self.above


class _AboveMs(_Rule):
    above_ms: PositiveMilliseconds

    @property
    def threshold(self) -> float:
        """As of :class:`_Above`."""
        return float(self.above_ms)


class LossRate(_Above):
    """Share of missing messages among those settled as delivered or missing, per channel or over all. Evaluated only
    with at least ``at_least`` messages in the window."""

    kind: Literal["loss_rate"]
    above: Share
    per: Literal["channel", "all"] = "channel"
    at_least: Count = 20


class QuarantineRate(_Above):
    """Share of quarantined (dropped) records among all received; ``reasons`` restricts it to some reasons."""

    kind: Literal["quarantine_rate"]
    above: Share
    reasons: tuple[str, ...] = ()
    at_least: Count = 20

    @field_validator("reasons")
    @classmethod
    def _check_reasons(cls, reasons: tuple[str, ...]) -> tuple[str, ...]:
        unknown = set(reasons) - {reason.value for reason in Reason}
        if unknown:
            raise ValueError(f"no such reason: {', '.join(sorted(unknown))} (docs/quarantine.md lists them)")
        return reasons


class SilentChannel(_AboveMs):
    """Time since a channel was last heard, ms of event time; of channels heard in the window with ``at_least`` SDS
    messages. A channel that was silent for the whole window is forgotten."""

    kind: Literal["silent_channel"]
    window_ms: Window = 24 * HOUR_MS
    at_least: Count = 10


class TopicInPartitions(_Above):
    """Number of Kafka partitions that hold SDS messages of one content topic: more than one have no defined order."""

    kind: Literal["topic_in_partitions"]
    above: Annotated[float, Field(ge=1)] = 1


class Budget(_Above):
    """Largest share of the rate limit of a sender that it used in one epoch, per channel: the envelopes ``of`` all
    roles, or those of control traffic (retransmissions, repairs and sync messages) alone. A sender with several
    channels may have used more than each of them shows."""

    kind: Literal["budget"]
    of: Literal["all", "control"] = "all"
    messages_per_epoch: Count
    epoch_size_ms: PositiveMilliseconds = 600_000


class SplitChannel(_AboveMs):
    """Time since a channel split: groups of its participants each of which lacks all newer messages of the other, ms
    from the oldest message that a group lacks to the recorded clock. It ends when a message crosses, or when there was
    no evidence of it for 15 minutes."""

    kind: Literal["split"]
    above_ms: PositiveMilliseconds = 60_000


class MixedFamilies(_Above):
    """Number of senders in the smaller wire family of a channel whose senders use two, so that they cannot read each
    other, or in the smaller encryption layer; of senders with ``at_least`` SDS messages in the window."""

    kind: Literal["mixed_families"]
    above: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0
    at_least: Count = 3


class Metric(_Above):
    """A metric of ``pipeline_metrics`` per query: its newest value, or its sum or maximum over the window (by the wall
    clock of the newest row), or the age of the newest row, ms of wall time."""

    kind: Literal["metric"]
    metric: Annotated[str, Field(pattern=r"^[a-z][a-z_]{0,63}$")]
    take: Literal["newest", "sum", "max", "age"] = "newest"
    queries: tuple[Name, ...] = ()


class ClockStopped(_AboveMs):
    """Time since ingest last wrote the recorded clock, ms of wall time."""

    kind: Literal["clock_stopped"]


Rule = (
    LossRate
    | QuarantineRate
    | SilentChannel
    | TopicInPartitions
    | Budget
    | SplitChannel
    | MixedFamilies
    | Metric
    | ClockStopped
)
KINDS = tuple(get_args(rule.model_fields["kind"].annotation)[0] for rule in get_args(Rule))

_ADAPTER: TypeAdapter[Rule] = TypeAdapter(Annotated[Rule, Field(discriminator="kind")])


def load_rules(path: str | None = None) -> tuple[Rule, ...]:
    """The rules of a file (of ``conf/alerts.yaml`` when none is named). Raises ``ConfigurationError`` that names the
    file and the rule."""
    file: Path | Traversable = find_shipped(RULES_FILE) if path is None else Path(path).expanduser()
    try:
        content = file.read_bytes()
    except FileNotFoundError:
        raise ConfigurationError(
            f"The rules file {file} does not exist.", "Set alerts.rules, or leave it out for the shipped rules."
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"The rules file {file} cannot be read: {error.strerror}.", "Set alerts.rules."
        ) from None
    return parse_rules(content, str(file))


def parse_rules(text: str | bytes, file: str) -> tuple[Rule, ...]:
    """The rules in a YAML text; ``file`` is for errors."""
    content = parse_yaml(text, file)
    if not isinstance(content, dict) or set(content) != {"rules"} or not isinstance(content["rules"], list):
        raise ConfigurationError(f"{file}: there must be one key, rules, with a list.", "See conf/alerts.yaml.")
    if len(content["rules"]) > MOST_RULES:
        raise ConfigurationError(f"{file} has more than {MOST_RULES} rules.", "Leave some out.")
    rules = tuple(_validate_rule(given, number, file) for number, given in enumerate(content["rules"], 1))
    names = [rule.alert for rule in rules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigurationError(f"{file}: two rules have the name {twice[0]}.", "Give each a name of its own.")
    return rules


def _validate_rule(given: Any, number: int, file: str) -> Rule:
    name = given.get("alert") if isinstance(given, dict) else None
    which = f"rule {name!r}" if isinstance(name, str) else f"rule number {number}"
    try:
        return _ADAPTER.validate_python(given)
    except ValidationError as error:
        wrong = "; ".join(_describe_error(item) for item in error.errors(include_url=False, include_context=True))
        raise ConfigurationError(f"{file}: {which}: {wrong}.", "docs/alerts.md has the kinds and their keys.") from None


def _describe_error(item: Any) -> str:
    if item["type"] == "union_tag_not_found":
        return "kind is missing"
    if item["type"] == "union_tag_invalid":
        return f"there is no kind {item['ctx']['tag']!r}, only {', '.join(KINDS)}"
    key = ".".join(str(part) for part in item["loc"][1:]) or "it"  # the first part is the kind
    if item["type"] == "extra_forbidden":
        return f"unknown key {key}"
    if item["type"] == "missing":
        return f"{key} is missing"
    return f"{key}: {item['msg'].removeprefix('Value error, ')}"
