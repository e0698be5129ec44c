"""Pretrain a model on text: `accelerate launch train/pretrain.py --config configs/pretrain/demo.yaml`."""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]]))
