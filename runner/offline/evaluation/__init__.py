"""Evaluation on held-out recorded data."""
