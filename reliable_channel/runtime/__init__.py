"""What the jobs stand on: the JVM parts, the development broker, the Spark session. Knows no protocol and no table."""
