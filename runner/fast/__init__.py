"""Hand-optimised code. Each module names its plain version and the measurement that justifies it."""
