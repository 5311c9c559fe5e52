"""Reliable channels of the Waku network on Spark.

The folders are rings; imports point inward only (``tests/unit/test_rings.py`` holds that):

1. protocol core: ``wire``, ``segmentation``, ``sds``, ``rate_limit``: bytes and values in, values and events out;
   no Spark, pandas, Kafka, clock, randomness or I/O;
2. participant: ``channel``, ``messaging``, with ``transport`` and ``store`` behind small protocols;
3. pipeline: ``pipeline``: DataFrame → DataFrame functions, table definitions, adapters from Spark state to the core;
4. edges: ``jobs/``, ``cli``, ``runtime``, ``report``, ``simulation``, notebooks.
"""

__version__ = "0.1.0"
