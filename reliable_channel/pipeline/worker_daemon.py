"""Starts Spark's Python workers, in place of ``pyspark.daemon``, with all modules of the tasks already imported.

Spark runs ``python -m`` this module once for each environment, and it forks a worker whenever a task needs one. A
forked worker has the modules at once; importing them would take a second. The imported objects are *frozen*
(:func:`gc.freeze`): a worker collects garbage after every task, and would each time scan some hundred thousand objects
of these modules, which are never garbage. A round took 3.5 s without and 1.95 s with it (docs/measurements-history.md,
*At 100 records/s, and without records*).

For local sessions only (``spark.python.daemon.module`` in :mod:`reliable_channel.runtime.spark`): on a cluster
``--py-files`` delivers the package, and the daemon does not see it.
"""

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import reliable_channel.pipeline.runner.queries  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
