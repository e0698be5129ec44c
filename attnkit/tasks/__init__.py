"""Fine-tuning tasks: how a row becomes tensors, which head, which metrics."""
