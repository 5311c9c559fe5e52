"""Reliable channels of the Waku network on Spark.

The folders are rings; imports point inward only (``tests/unit/test_rings.py`` checks this):

1. ``core``: wire formats, segmentation, SDS, encryption, rate limits, as functions from bytes and values to values and
   events; no Spark, pandas, Kafka, clock, randomness or I/O;
2. ``transport``, ``channel``, ``messaging``: the participant, without Spark and Delta; ``simulation``: its peers and a
   network with losses;
3. ``config``, ``runtime``: settings, processes, Spark sessions; ``lake``: the tables, in Delta without Spark;
4. ``pipeline``: the streaming jobs, verdicts and maintenance; ``evidence``: where participant and tables meet;
5. ``analysis``, ``cli``, ``jobs/`` and notebooks: what users run and read.
"""

__version__ = "0.1.0"
