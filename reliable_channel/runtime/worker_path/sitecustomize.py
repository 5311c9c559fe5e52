"""Lets a Python worker import the installed PySpark; Python runs this module when it starts.

Spark puts ``pyspark.zip`` first on a worker's path. A zip file contains no compiled modules, so every new process would
compile PySpark from source, for half a second, and search three archives at every import.
"""

import os
import sys

_spark = tuple(f"{entry}{os.sep}pyspark{os.sep}" for entry in sys.path if entry)
for _archive in [entry for entry in sys.path if entry.startswith(_spark)]:
    sys.path.remove(_archive)
    sys.path_importer_cache.pop(_archive, None)
