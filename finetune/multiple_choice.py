"""Fine-tune a model for the right one of several texts.

accelerate launch finetune/multiple_choice.py --config configs/finetune/swag.yaml
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", "--task.name", "multiple_choice", *sys.argv[1:]]))
