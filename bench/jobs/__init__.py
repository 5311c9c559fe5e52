"""Contains the parts of ``bench/pipeline.py``: traffic, process measurements, and the runs inside a pinned process."""
