"""The ingest job: decodes, decrypts and validates Kafka records, within quotas."""
