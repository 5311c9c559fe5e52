"""Shows the tables to people: reports, charts, the dashboard, alerts and the status. It writes no table but
``alerts``."""
