"""The verdict job: computes the verdicts of messages about which there is new evidence, from all evidence about
them."""
