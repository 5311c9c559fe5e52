"""``python -m reliable_channel.cli``."""

from reliable_channel.cli import main

main()
