"""Fine-tune a model for several labels of a text.

accelerate launch finetune/multi_label.py --data.source articles.jsonl --task.label_column topics
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["finetune", "--task.name", "multi_label", *sys.argv[1:]]))
