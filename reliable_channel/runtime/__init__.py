"""Provides the JVM jars, the development broker and the Spark session. Knows no protocol and no table."""
