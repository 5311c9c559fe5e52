"""The Delta tables: their definitions, and how they are created, read, followed, written and committed. No Spark."""
