"""HTTP in both directions, bounded against slow, wrong and hostile peers.

``client`` asks nodes, within the time that ``deadline`` sets. ``server`` runs our own servers; ``connections`` bounds
their connections, ``request_limit`` the requests they work on, and ``guard`` refuses callers: host names, pages of
other sites, methods, tokens. Only ``client`` and ``deadline`` work without the extra ``api``.
"""
