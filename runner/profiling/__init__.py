"""Where the time of an iteration goes: stacks of every process of a run, sampled while it trains."""
