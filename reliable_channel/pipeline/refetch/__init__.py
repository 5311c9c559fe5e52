"""Open repair requests and gaps to the stores, and what they have back to Kafka."""
