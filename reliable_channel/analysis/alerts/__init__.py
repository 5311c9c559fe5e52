"""Evaluates alert rules over the Delta tables, without Spark (docs/alerts.md).

``rules`` reads the typed rules file, ``measure`` evaluates each rule over the tables, ``changes`` decides which alerts
that raises or clears (pure), ``log`` keeps the table ``alerts``, ``webhook`` sends the changes. ``check`` runs them in
this order.
"""
