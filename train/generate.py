"""Continue a text with a model: `python train/generate.py runs/demo --prompt Once`."""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["generate", *sys.argv[1:]]))
