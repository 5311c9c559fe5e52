"""Lets a Python worker import PySpark from where it is installed; Python runs this module when it starts.

Spark puts ``pyspark.zip`` before everything on a worker's path. A zip file holds no compiled modules, so every new
process compiled PySpark from its source, for half a second, and looked into three archives at every import.
"""

import os
import sys

_spark = tuple(f"{place}{os.sep}pyspark{os.sep}" for place in sys.path if place)
for _archive in [place for place in sys.path if place.startswith(_spark)]:
    sys.path.remove(_archive)
    sys.path_importer_cache.pop(_archive, None)
