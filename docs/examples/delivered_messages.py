"""Reads what a channel delivered, in its causal order, into a pandas frame. Reads the tables of ``make demo``."""

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import load

snapshot = TableSnapshot(load(paths={"data_dir": "build/demo/tables"}).paths)
frame = snapshot.arrow(
    "SELECT channel_id, delivery_seq, sender_id, payload_bytes FROM delivered_messages ORDER BY ALL"
).to_pandas()
print(frame.groupby("channel_id").agg(messages=("delivery_seq", "size"), bytes=("payload_bytes", "sum")))
