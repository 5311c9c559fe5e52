"""The jobs on Spark: ingest, reassembly, ack and verdict, and what runs and maintains them."""
