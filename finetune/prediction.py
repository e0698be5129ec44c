"""Let a fine-tuned model answer new examples.

accelerate launch finetune/prediction.py runs/demo/finetune --data.source new.csv
"""

import sys

from attnkit.cli import main

if __name__ == "__main__":
    sys.exit(main(["predict", *sys.argv[1:]]))
