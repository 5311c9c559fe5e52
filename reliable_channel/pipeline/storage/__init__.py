"""Delta tables, their commits and the checkpoints, wherever they are."""
