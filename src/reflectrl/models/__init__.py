"""Language models: loading, reading, scoring, writing."""

import logging

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # where installed, peft imports it, and it talks at once
