"""Fine-tune a model for answers to instructions.

accelerate launch finetune/instruction.py --data.source conversations.jsonl --task.options.messages_column messages
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", "--task.name", "instruction", *sys.argv[1:]]))
