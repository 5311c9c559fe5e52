"""Kafka records to ``segments`` and ``quarantine``: validated, decrypted, decoded, within quotas."""
