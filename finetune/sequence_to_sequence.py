"""Fine-tune a model for a text from a text.

accelerate launch finetune/sequence_to_sequence.py --config configs/finetune/xsum.yaml
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", "--task.name", "sequence_to_sequence", *sys.argv[1:]]))
