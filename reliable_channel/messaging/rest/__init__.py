"""The Messaging API as a REST server (MESSAGING-API, every *REST API* section), for programs not written in Python.

``app`` assembles; ``models`` is the documented JSON, ``errors`` the status codes and texts, ``guard`` the checks before
every handler (hosts, token, content type, body size), ``longpoll`` waiting calls. Loopback by default; CORS is off, so
that no web page can read or change anything.
"""
