"""How a job is started, stopped, started again, and told what went wrong."""
