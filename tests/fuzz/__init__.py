"""Fuzzing: bytes and sequences of inputs from hostile senders, against properties that hold for all of them."""
