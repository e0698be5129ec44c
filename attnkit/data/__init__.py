"""From text to batches: sources, tokenizer, packing, objectives."""
