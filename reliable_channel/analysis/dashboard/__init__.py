"""The live dashboard: pages over the Delta tables, rendered here, without Spark (docs/dashboard.md).

``app`` holds the routes, ``guard`` the access rules, ``page_cache`` the snapshot that pages share. One module per page
queries the tables: ``overview``, ``channels``, ``channel``, ``messages``, ``message``, ``quarantine``, ``alerts``.
``charts`` draws. Every string that came from the network is escaped by the templates, and shown printable by ``text``.
"""
