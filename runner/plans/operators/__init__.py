"""The operators of plans; `runner.plans` lists them."""
