"""Configuration: schemas, composition, validation, error messages. Imports neither torch nor ray."""
