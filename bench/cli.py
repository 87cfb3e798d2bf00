"""How quick the command starts, and how long a second `lab up` takes.

bench/cli.py --json     the last line is one JSON object
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 20
PYTHON = sys.executable
TFDEPLOY = str(Path(sys.executable).with_name("tfdeploy"))


def seconds(*words: str, cwd: str | None = None) -> float:
    started = time.perf_counter()
    subprocess.run(words, check=True, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - started


def starts() -> tuple[float, float]:
    """Best of several, taken in turns so that noise hits both alike."""
    bare, helped = [], []
    for _ in range(ROUNDS):
        bare.append(seconds(PYTHON, "-c", "pass"))
        helped.append(seconds(TFDEPLOY, "--help"))
    return min(bare), min(helped)


def lab_up_again() -> float:
    up = (TFDEPLOY, "lab", "up", "--name", "bench", "--hosts", "3")
    with tempfile.TemporaryDirectory() as directory:
        try:
            seconds(*up, cwd=directory)
            return min(seconds(*up, cwd=directory) for _ in range(3))
        finally:
            seconds(TFDEPLOY, "lab", "down", "--name", "bench", cwd=directory)


def main() -> None:
    bare, helped = starts()
    again = lab_up_again()
    figures = {
        "python_s": round(bare, 4),
        "help_s": round(helped, 4),
        "help_over_python": round(helped / bare, 2),
        "second_lab_up_s": round(again, 2),
    }
    if "--json" not in sys.argv:
        print(f"tfdeploy --help: {helped * 1000:.0f} ms, {helped / bare:.1f}x a bare Python; limit 8x")
        print(f"lab up --hosts 3, again: {again:.1f} s; limit 10 s")
        return
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
