"""Execution plans as data: `algorithm.plan` is read, its operators are checked to fit together, and it is drawn."""
