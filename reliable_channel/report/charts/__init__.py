"""Altair charts of what ``reliable_channel.report`` asks the tables, each made from one frame.

``drawing`` turns them into SVG or PNG in this process, without a browser and without a network.
"""
