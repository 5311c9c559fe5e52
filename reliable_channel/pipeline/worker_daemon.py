"""Starts Spark's Python workers, in place of ``pyspark.daemon``, with everything that tasks import already in memory.

Spark runs ``python -m`` this module once for each environment and lets it fork a worker whenever a task needs one. A
forked worker has the modules at once, where it would otherwise import them for a second. And what is imported is
*frozen* (:func:`gc.freeze`): after every task a worker collects garbage, and would each time look through some hundred
thousand objects of these modules, which are never garbage.

For local sessions only (``spark.python.daemon.module`` in :mod:`reliable_channel.runtime.spark`): on a cluster the
package comes with ``--py-files``, which the daemon does not see.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import reliable_channel.pipeline.runner.queries  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
