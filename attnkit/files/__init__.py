"""What is read back: text, JSON and YAML, and the user's own files of parts; whatever is wrong is named with its line.

This file imports nothing, so that the help can be read without torch.
"""
