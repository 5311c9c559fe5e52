"""The verdict job: judges the messages that new evidence tells of, by all evidence about them."""
