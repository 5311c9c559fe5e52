"""What every table says of a message to ``delivery_status``."""
