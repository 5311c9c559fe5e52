"""Evaluates alert rules over the Delta tables, without Spark (docs/alerts.md).

``rules`` is the typed rules file, ``measure`` what the tables say about each rule, ``changes`` which alerts that raises
or clears (pure), ``log`` the table ``alerts``, ``webhook`` who is told. ``check`` runs them in this order.
"""
