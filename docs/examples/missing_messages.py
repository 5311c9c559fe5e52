"""Which messages are missing, and why? Reads the tables of ``make demo``; needs no Spark."""

from reliable_channel.analysis.report.snapshot import TableSnapshot
from reliable_channel.config import load

snapshot = TableSnapshot(load(paths={"data_dir": "build/demo/tables"}).paths)  # one consistent look at all tables
missing = snapshot.select(
    "SELECT cause, count(*) AS messages FROM delivery_status WHERE verdict = 'missing' GROUP BY cause ORDER BY ALL"
)
for row in missing:
    print(row["messages"], "messages:", row["cause"])
