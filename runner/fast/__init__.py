"""Hand-tuned code: each module names its plain version, and the measurement that justifies it."""
