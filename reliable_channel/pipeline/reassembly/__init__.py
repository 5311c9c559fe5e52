"""The reassembly job: rebuilds payloads from segments, complete in a micro-batch or collected in keyed state."""
