"""Running an experiment: its parts are built, trained, recorded and brought to an end."""
