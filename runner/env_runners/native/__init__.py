"""Sub-environments that a library steps together in its threads, as gymnasium vector environments.

These libraries do not expose states. A seed and the same actions restore an episode exactly, so a state consists of
both. To keep replays short, a sub-environment gets a new seed every `NUM_STEPS_OF_SEED` vector steps.
"""
