"""Sub-environments that a library steps together in its own threads, as gymnasium's vector environments are stepped.

These libraries tell no states. A seed and the same actions bring an episode back bit for bit, so a state is both; so
that replays stay short, a sub-environment is given a new seed every `NUM_STEPS_OF_SEED` vector steps.
"""
