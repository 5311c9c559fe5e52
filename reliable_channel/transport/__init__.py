"""Sends and receives envelopes over several networks behind one small node port.

``base`` is the port: what the reliable channel dispatches through, and what every transport and the Messaging API
implement. ``memory`` is a network inside one process, ``kafka`` the project's topics, ``waku_rest`` a Waku node over
HTTP, ``bridge`` what stands between a node and Kafka. Knows nothing of SDS, segments or encryption.
"""
