"""Reports: pages of sweeps, pages that follow a folder, and pictures of pages for MLflow.

Imports neither torch nor Ray.
"""
