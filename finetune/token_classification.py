"""Fine-tune a model for a tag for each word.

accelerate launch finetune/token_classification.py --config configs/finetune/conll2003.yaml
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", "--task.name", "token_classification", *sys.argv[1:]]))
