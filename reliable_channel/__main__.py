"""``python -m reliable_channel``, the same as the console script."""

from reliable_channel.cli import main

main()
