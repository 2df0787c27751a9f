"""Drawings as SVG texts that need nothing else: boxes with arrows, and small curves.

Imports the standard library only.
"""
