"""What the tables say, for people: without Spark, from plain Delta tables.

* ``source`` (a window of the tables, SQL with bound values), ``dimensions``, ``times``; ``lake`` for single questions
* what is asked: ``delivery``, ``depth``, ``loss``, ``quarantine``, ``capacity``, ``investigate``, ``graph``
* how it is shown: ``charts``, ``drawing``, ``summary`` (JSON), ``terminal``, ``page``, ``csv_files``, ``thresholds``
* the demo: ``observed``, ``tables``, ``check``, ``check_verdicts``, ``render``
"""
