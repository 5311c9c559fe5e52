"""The Delta tables: what they hold, and how they are created, read, followed, written and committed. No Spark."""
