"""The live dashboard: pages over the Delta tables, rendered here, without Spark (docs/dashboard.md).

``app`` are the routes, ``guard`` what stands before them, ``shelf`` the snapshot that pages share, and one module per
page asks the tables: ``overview``, ``channels``, ``channel``, ``messages``, ``message``, ``quarantine``, ``alerts``.
``charts`` draws. Every string that came from the network is escaped by the templates, and shown printable by ``text``.
"""
