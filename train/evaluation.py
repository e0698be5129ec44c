"""Measure a pretrained model on held-out text: `accelerate launch train/evaluation.py runs/demo`."""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["evaluate", *sys.argv[1:]]))
