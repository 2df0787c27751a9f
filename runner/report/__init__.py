"""Reports: pages of sweeps, live pages of a folder, and images of pages for MLflow.

This package imports neither torch nor Ray.
"""
