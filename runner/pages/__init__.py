"""Pages: charts, the HTML around them, and what is shown of a run.

Imports neither torch nor Ray.
"""
