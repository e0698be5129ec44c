"""Train a tokenizer on text and save it: `python train/tokenizer.py --data.source my.txt`."""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["tokenizer", *sys.argv[1:]]))
