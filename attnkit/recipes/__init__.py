"""Where model, data and loop meet: the place to start reading."""
