"""How long a plan takes: the planner by size, and `tfdeploy plan` beside `ansible-inventory --list`.

    python bench/plan.py [--json]

Contenders run in turns, the best of several runs counts. The last line is one JSON object.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from tfdeploy.inventory import Connection, Host, Inventory
from tfdeploy.plan import Wishes, plan
from tfdeploy.spec import JobSpec

SIZES = (100, 1_000, 10_000)
ROUNDS = 9


def main() -> None:
    seconds = {tasks: best(partial(plan_of, tasks), 5) for tasks in SIZES}
    ours, ansibles = commands()
    if "--json" not in sys.argv[1:]:
        show(seconds, ours, ansibles)
    print(
        json.dumps(
            {
                **{f"plan_{tasks}_tasks_s": round(taken, 5) for tasks, taken in seconds.items()},
                "us_per_task_growth_100_to_10000": round(seconds[10_000] / seconds[100] / 100, 2),
                "tfdeploy_plan_s": round(ours, 3),
                "ansible_inventory_s": round(ansibles, 3),
                "over_ansible_inventory": round(ours / ansibles, 2),
            }
        )
    )


def show(seconds: dict[int, float], ours: float, ansibles: float) -> None:
    for tasks, taken in seconds.items():
        per_task = taken / tasks * 1e6
        print(f"{tasks:6} tasks on {tasks // 2:4} hosts: {taken * 1000:6.2f} ms, {per_task:.1f} us a task")
    print(f"tfdeploy plan, 3 hosts:            {ours:.3f} s")
    print(f"ansible-inventory --list, 3 hosts: {ansibles:.3f} s")


def plan_of(tasks: int) -> None:
    made = plan(inventory_of(tasks // 2), JobSpec(name="bench", image="x"), Wishes(ps=tasks // 20))
    assert len(made.tasks) == tasks


def inventory_of(count: int) -> Inventory:
    hosts = (Host(f"h{n}", Connection(host=f"10.{n >> 16}.{n >> 8 & 255}.{n & 255}"), slots=2) for n in range(count))
    return Inventory(tuple(hosts))


def commands() -> tuple[float, float]:
    """Best seconds of `tfdeploy plan` and of `ansible-inventory`, run in turns."""
    here = Path(sys.executable).parent
    # Installed packages have their bytecode; a checkout gets it in the first round.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "inventory.ini").write_text("".join(f"h{n} ansible_host=10.0.0.{n}\n" for n in (1, 2, 3)))

        def run(*words: str) -> float:
            start = time.perf_counter()
            subprocess.run(words, cwd=directory, env=environment, check=True, capture_output=True)
            return time.perf_counter() - start

        rounds = [
            (
                run(str(here / "tfdeploy"), "plan", "inventory.ini", "--ps", "1"),
                run(str(here / "ansible-inventory"), "-i", "inventory.ini", "--list"),
            )
            for _ in range(ROUNDS)
        ]
    return min(ours for ours, _ in rounds), min(theirs for _, theirs in rounds)


def best(work: Callable[[], None], rounds: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(rounds))


if __name__ == "__main__":
    main()
