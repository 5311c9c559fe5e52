"""A listener to streaming queries that gets their progress as Spark's JSON, in two calls to the JVM.

PySpark's own (``QueryProgressEvent.fromJObject``) copies a progress attribute by attribute. Each of its Java maps is
read to the exception that ends its iterator, and for every such exception PySpark asks the JVM whether it is one of
fourteen others, for which Py4J looks for names in all jars (docs/measurements-history.md has what that costs).
``StreamingQuery.lastProgress`` reads JSON already. Names that PySpark does not document are used here and nowhere else:
the class that the JVM calls, and the attribute by which ``addListener`` finds it.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import JStreamingQueryListener, QueryProgressEvent, StreamingQueryListener


class ProgressListener(StreamingQueryListener):
    """A listener whose progress events are made of Spark's JSON; everything else is as PySpark documents it."""

    @property
    def _jlistener(self) -> Any:
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_JsonEvents(self))
        return self._jlistenerobj


class _JsonEvents(JStreamingQueryListener):
    """What the JVM calls."""

    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802 - Spark's name
        progress = json.loads(jevent.progress().json())
        self.pylistener.onQueryProgress(QueryProgressEvent.fromJson({"progress": progress}))
