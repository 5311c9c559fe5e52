"""Computes the health state of a node for its configured mode, and reports changes (MESSAGING-API, *Health Indicator*).

``transport.health`` defines the criteria. In ``edge`` mode the service nodes decide, in ``relay`` mode the mesh peers.
One to three mesh peers are *unhealthy*, because the specified *minimally healthy* begins at four.
"""

from __future__ import annotations

from dataclasses import replace

from reliable_channel.transport.health import Health, HealthState, Mode, judge_edge, judge_relay

HealthStatus = HealthState
"""The specified name of the three states."""


def judge(mode: Mode, report: Health) -> HealthStatus:
    """The state of a node of ``mode`` with this report. Peer counts take precedence over the reporter's own verdict,
    which is used where a transport has no peers to count (Kafka, memory)."""
    if mode is Mode.RELAY:
        return report.state if report.relay_peers is None else judge_relay(report.relay_peers)
    if report.lightpush_peers is None or report.filter_peers is None:
        return report.state
    return judge_edge(report.lightpush_peers, report.filter_peers)


class HealthIndicator:
    """The current state, and whether a report changed it. Starts *unhealthy*: nothing is connected yet."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self.report = Health(HealthStatus.UNHEALTHY, "not started")
        self.change_seq = 0
        """How often the state has changed: the cursor for long polling."""

    @property
    def status(self) -> HealthStatus:
        """The state as of the last report."""
        return self.report.state

    @property
    def is_usable(self) -> bool:
        """Whether retries and store queries run: in every state but *unhealthy*."""
        return self.status is not HealthStatus.UNHEALTHY

    def would_change(self, report: Health) -> bool:
        """Whether :meth:`observe` would change the state, or the peers that were counted."""
        return replace(self._judge(report), detail=self.report.detail) != self.report

    def observe(self, report: Health) -> HealthStatus | None:
        """The new state if this report changes it, else None, so that ``health:change`` is emitted exactly once per
        change."""
        before, self.report = self.status, self._judge(report)
        if self.status is before:
            return None
        self.change_seq += 1
        return self.status

    def restore(self, report: Health) -> None:
        """Return to an earlier report: the change since then was not stored."""
        self.report = report

    def _judge(self, report: Health) -> Health:
        return replace(report, state=judge(self._mode, report))
