"""Fine-tune a model for a number from a text.

accelerate launch finetune/regression.py --config configs/finetune/glue/stsb.yaml
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", "--task.name", "regression", *sys.argv[1:]]))
