"""The verdict job: judges the messages that new evidence is about, by all evidence about them."""
