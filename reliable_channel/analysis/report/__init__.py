"""Reads the Delta tables without Spark and analyses them for users.

* ``source`` (a window of the tables, SQL with bound values), ``dimensions``, ``times``; ``snapshot``: single questions
* what is asked: ``delivery``, ``depth``, ``loss``, ``quarantine``, ``capacity``, ``investigate``, ``graph``
* how it is shown: ``charts``, ``drawing``, ``summary`` (JSON), ``terminal``, ``csv_files``, ``thresholds``; as a
  page: :mod:`reliable_channel.analysis.dashboard.report_page`, with the dashboard's templates
"""
