"""The edges that training needs between hosts, and whether they are open: pure, but for `attempt`.

A host listens on the ports that its tasks will have, its peers connect to the training address and must get an answer
that only our listener can give. Python on the hosts does both; nothing is written there.
"""

import contextlib
import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tfdeploy import remote
from tfdeploy.errors import TfdeployError
from tfdeploy.plan import Plan
from tfdeploy.remote import Output, Runs
from tfdeploy.task import Task
from tfdeploy.wording import last_line

SECONDS_TO_LISTEN = 60
SECONDS_TO_CONNECT = 3

LISTEN = """\
python3 - <<'END'
import json, os, selectors, socket, time
ports, token, seconds = json.loads(r'''SETTINGS''')
waiting, deadline = selectors.DefaultSelector(), time.monotonic() + seconds
# The way to end it lies past every firewall, and leaves no file.
end = socket.socket(socket.AF_UNIX)
end.bind("\\0tfdeploy-%s-%d" % (token, min(ports)))
end.listen()
waiting.register(end, selectors.EVENT_READ)
both = socket.has_dualstack_ipv6()
family = socket.AF_INET6 if both else socket.AF_INET
for port in ports:
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        print(json.dumps([port, os.strerror(error.errno)]), flush=True)
        continue
    waiting.register(server, selectors.EVENT_READ)
while time.monotonic() < deadline:
    for key, _ in waiting.select(1):
        peer, _ = key.fileobj.accept()
        if key.fileobj is end:
            raise SystemExit
        try:
            peer.settimeout(2)
            said = peer.recv(200).decode(errors="replace")
            peer.sendall(token.encode() if said == token[::-1] else b"?")
        except OSError:
            pass
        finally:
            peer.close()
END
"""

CONNECT = """\
python3 - <<'END'
import json, socket, time
targets, token, seconds = json.loads(r'''SETTINGS''')
for address, port, word in targets:
    deadline = time.monotonic() + seconds
    while True:
        try:
            with socket.create_connection((address, port), seconds) as peer:
                peer.settimeout(seconds)
                peer.sendall(word.encode())
                found = "ok" if peer.recv(200).decode(errors="replace") == token else "somebody else answers there"
        except OSError as error:
            found = error.strerror or str(error)
            # The listener may still be on its way.
            if isinstance(error, ConnectionRefusedError) and time.monotonic() < deadline:
                time.sleep(0.1)
                continue
        print(json.dumps([address, port, found]), flush=True)
        break
END
"""

# The listener may hold some of its ports only, and may still be on its way.
STOP = """\
python3 - <<'END'
import json, socket, time
ports, token, seconds = json.loads(r'''SETTINGS''')
deadline = time.monotonic() + seconds
while time.monotonic() < deadline:
    try:
        socket.socket(socket.AF_UNIX).connect("\\0tfdeploy-%s-%d" % (token, min(ports)))
        break
    except OSError:  # the listener may still be on its way, or be gone
        time.sleep(0.1)
END
"""


@dataclass(frozen=True)
class Edge:
    source: str
    target: Task

    @property
    def name(self) -> str:
        return f"reaches {self.target.id} ({self.target.host}, {self.target.address}:{self.target.port})"


def edges(plan: Plan) -> tuple[Edge, ...]:
    """Chief to all, worker to ps and chief; without ps, a ring of workers that all reach the first. Each once."""
    chief, ps, workers = (plan.by_role[role] for role in ("chief", "ps", "worker"))
    pairs: list[tuple[Task, Task]] = [(source, target) for source in chief for target in (*ps, *workers)]
    pairs += [(worker, target) for worker in workers for target in (*ps, *chief)]
    if not ps:
        ring = (*workers[1:], *workers[:1])
        pairs += list(zip(workers, ring, strict=True)) + [(worker, workers[0]) for worker in workers]
    return tuple(dict.fromkeys(Edge(source.host, target) for source, target in pairs if source.host != target.host))


def attempt(wanted: Sequence[Edge], remotes: Mapping[str, Runs]) -> dict[Edge, str]:
    """Each edge with nothing where it is open, or with what is in the way. Only entered hosts take part."""
    reachable = [edge for edge in wanted if edge.source in remotes and edge.target.host in remotes]
    ports: dict[str, set[int]] = {}
    for edge in reachable:
        ports.setdefault(edge.target.host, set()).add(edge.target.port)
    token = secrets.token_hex(16)
    with ThreadPoolExecutor(max(1, len(ports))) as pool:
        listening = [
            pool.submit(remotes[host].run, script(LISTEN, sorted(numbers), token, SECONDS_TO_LISTEN), root=False)
            for host, numbers in ports.items()
        ]
        sources = {edge.source: remotes[edge.source] for edge in reachable}
        by_source = {name: [edge for edge in reachable if edge.source == name] for name in sources}
        answers = remote.on_each(
            {name: (entered, by_source[name]) for name, entered in sources.items()},
            lambda work: _connect(*work, token),
        )
        remote.on_each({host: (remotes[host], numbers) for host, numbers in ports.items()}, lambda w: _stop(*w, token))
        deaf = {host: _unheard(future) for host, future in zip(ports, listening, strict=True)}
    found: dict[Edge, str] = {}
    for name, answer in answers.items():
        for edge in by_source[name]:
            obstacle = str(answer) if isinstance(answer, TfdeployError) else answer[edge]
            found[edge] = obstacle and deaf[edge.target.host].get(edge.target.port, obstacle)
    return found


def script(template: str, what: object, token: str, seconds: float) -> str:
    return template.replace("SETTINGS", json.dumps([what, token, seconds]))


def _connect(source: Runs, wanted: Sequence[Edge], token: str) -> dict[Edge, str]:
    targets = [(edge.target.address, edge.target.port, token[::-1]) for edge in wanted]
    output = source.run(script(CONNECT, targets, token, SECONDS_TO_CONNECT), root=False)
    found = dict(_answers(output.stdout))
    why = last_line(output.stderr) or "it could not be tried"
    results = {edge: found.get((edge.target.address, edge.target.port), why) for edge in wanted}
    return {edge: "" if result == "ok" else result for edge, result in results.items()}


def _answers(printed: str) -> Iterator[tuple[tuple[str, int], str]]:
    for address, port, found in _rows(printed, 3):
        yield (address, port), found


def _unheard(listening: Future[Output]) -> dict[int, str]:
    """The ports that its listener could not have, with why; whatever else failed there, its peers have noticed."""
    if listening.exception():
        return {}
    return {port: f"its port cannot be had: {why}" for port, why in _rows(listening.result().stdout, 2)}


def _rows(printed: str, length: int) -> Iterator[list[Any]]:
    """JSON lists, one to a line; other lines are not ours."""
    for line in printed.splitlines():
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, list) and len(row) == length and all(isinstance(each, str | int) for each in row):
                yield row


def _stop(host: Runs, ports: set[int], token: str) -> None:
    host.run(script(STOP, sorted(ports), token, SECONDS_TO_CONNECT), root=False)
