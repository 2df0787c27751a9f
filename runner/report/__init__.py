"""Reports: one HTML page of a sweep or of a run, that opens without a network.

Imports neither torch nor Ray.
"""
