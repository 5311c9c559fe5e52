"""Rings 3 and 4 (design.md *Rings*): a room per job; ``tables``, ``storage``, ``running``, ``operations`` serve all."""
