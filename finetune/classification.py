"""Fine-tune a classifier.

accelerate launch finetune/classification.py --config configs/finetune/classification.yaml
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", *sys.argv[1:]]))
