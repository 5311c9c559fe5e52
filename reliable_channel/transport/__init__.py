"""Sends and receives envelopes over several networks behind one small node port.

``base`` is the port: the reliable channel dispatches through it, and every transport and the Messaging API implement
it. ``memory`` is a network inside one process, ``kafka`` the project's topics, ``waku_rest`` a Waku node over HTTP,
``bridge`` the process between a node and Kafka. This package does not use SDS, segments or encryption.
"""
