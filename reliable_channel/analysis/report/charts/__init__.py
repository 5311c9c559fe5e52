"""Draws Altair charts, each from one frame of ``reliable_channel.analysis.report``.

``drawing`` turns them into SVG in this process, without a browser and without a network.
"""
