"""Tokenize and pack text once: `python train/prepare.py --config my.yaml --data.prepared runs/rows`."""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["prepare", *sys.argv[1:]]))
