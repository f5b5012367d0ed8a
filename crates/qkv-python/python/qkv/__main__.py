"""The command ``qkv``, also as ``python -m qkv``."""

import sys

from qkv._qkv import run_command


def main() -> int:
    """Runs the command with this process's arguments, and gives its exit status."""
    return run_command(["qkv", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
