"""The Spark jobs ingest, reassembly, ack and verdict, and the code that runs and maintains them."""
