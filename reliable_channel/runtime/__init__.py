"""Starts the parts that a configuration describes: jars, broker and Spark session, transports, participants and their
servers."""
