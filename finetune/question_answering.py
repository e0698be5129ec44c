"""Fine-tune a model for the span of a text that answers a question.

accelerate launch finetune/question_answering.py --config configs/finetune/squad1.yaml
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", "--task.name", "question_answering", *sys.argv[1:]]))
