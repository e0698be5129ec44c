"""Configuration and models; `auto` gathers them and registers them with transformers."""
