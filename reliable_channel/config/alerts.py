"""Configures alerts: the rules file and the webhook."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, SecretStr, field_validator

from reliable_channel.config.section import Count, PositiveMilliseconds, Section


class AlertSettings(Section):
    """Configures alerts. If ``rules`` is unset, the shipped ``conf/alerts.yaml`` applies. Without ``webhook_url``
    changes are written to the table ``alerts`` only.

    The URL is a secret (for many services it is the only one): ``RELIABLE_CHANNEL__ALERTS__WEBHOOK_URL``;
    ``webhook_token`` is sent as ``Authorization: Bearer``. ``webhook_attempts`` counts the attempts of one run; changes
    that could not be sent are tried again at the next run.
    """

    rules: str | None = None
    webhook_url: SecretStr | None = None
    webhook_token: SecretStr | None = None
    webhook_timeout_ms: PositiveMilliseconds = 10_000
    webhook_attempts: Annotated[int, Field(gt=0, le=20)] = 4
    most_open: Count = Field(default=100, description="alerts of one rule that are open at once; a bound for strangers")

    @field_validator("webhook_url")
    @classmethod
    def _check_scheme(cls, url: SecretStr | None) -> SecretStr | None:
        if url is not None and not url.get_secret_value().startswith(("http://", "https://")):
            raise ValueError("it must begin with http:// or https://")
        return url
