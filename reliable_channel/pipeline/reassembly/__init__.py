"""The reassembly job: rebuilds payloads from segments, within a micro-batch or across micro-batches in keyed state."""
