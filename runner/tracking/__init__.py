"""Tracking: progress.jsonl, result.json, MLflow in a separate process, and the output on the terminal.

This package imports neither MLflow nor rich: only the child process imports MLflow, only a live display imports rich.
"""
