"""Sweeps: many runs of one experiment."""
