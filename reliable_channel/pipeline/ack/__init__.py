"""The ack job: delivers SDS messages in causal order per channel and records acknowledgements."""
