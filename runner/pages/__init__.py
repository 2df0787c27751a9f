"""Pages: charts, the HTML around them, and the content of a run's page.

This package imports neither torch nor Ray.
"""
