"""Language models: loading them, reading prompts, scoring actions, writing texts."""

import logging

logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # peft imports it if it is installed, and it logs on import
