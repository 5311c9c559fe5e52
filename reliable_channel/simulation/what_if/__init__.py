"""Replays recorded conversations under other settings (docs/howto/what-if.md): ``recording`` reads them from the
tables, ``prediction`` simulates them."""
