"""Presents the tables to users: reports, charts, the dashboard, alerts and the status. The only table it writes is
``alerts``."""
