"""The verdict job: judges messages with new evidence by all evidence about them."""
