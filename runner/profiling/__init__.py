"""Profile the time of an iteration by sampling the stacks of every process of a run."""
