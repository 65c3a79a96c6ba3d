"""The console script `firkin`, also `python -m firkin`: the program's commands that need no LibTorch."""

import os
import pathlib
import sys


def main() -> int:
    program = pathlib.Path(__file__).parent / "bin" / "firkin"
    try:
        os.execv(program, [str(program), *sys.argv[1:]])
    except OSError as error:
        print(f"firkin: {program}: {error.strerror}; reinstall the package", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
