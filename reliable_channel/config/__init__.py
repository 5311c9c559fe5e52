"""The one configuration: a typed model, read from a YAML file and the environment.

``load()`` → :class:`Settings`, frozen. Order, the later wins: defaults in the code, the file (``conf/local.yaml``
unless ``--config`` or ``RELIABLE_CHANNEL_CONFIG`` names another), environment variables
``RELIABLE_CHANNEL__SECTION__KEY`` (lists and mappings as JSON). An unknown key or a wrong value is a
``ConfigurationError`` that names the key and where it was set. Secrets are ``SecretStr``: ``to_yaml()`` masks them, and
no error text shows them.

The protocol core does not import this module: ``settings.segmentation`` etc. are (subclasses of) the core's own frozen
dataclasses, validated here.
"""

from reliable_channel.config.channels import ChannelsSettings, ChannelTopic
from reliable_channel.config.kafka import KafkaSettings, SecuritySettings
from reliable_channel.config.loading import load
from reliable_channel.config.model import PathSettings, PipelineSettings, Quota, QuotaSettings, Settings
from reliable_channel.config.node import (
    StoreAuditSettings,
    StoreNodeSettings,
)

__all__ = [
    "ChannelTopic",
    "ChannelsSettings",
    "KafkaSettings",
    "PathSettings",
    "PipelineSettings",
    "Quota",
    "QuotaSettings",
    "SecuritySettings",
    "Settings",
    "StoreAuditSettings",
    "StoreNodeSettings",
    "load",
]
