"""The verdict job: judges every message known to exist by the evidence in all tables."""
