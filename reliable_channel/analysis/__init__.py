"""What people look at: reports, charts, the dashboard, alerts and the status. Reads tables and never writes them."""
