"""The edges that training needs between hosts, and whether they are open: pure, but for `attempt`.

A host listens on the ports that its tasks will have, its peers connect to the training address and must get an answer
that only our listener can give. Python on the hosts does both; nothing is written there.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tfdeploy import remote
from tfdeploy.errors import TfdeployError
from tfdeploy.plan import Plan
from tfdeploy.remote import Remote
from tfdeploy.task import Task

SECONDS_TO_LISTEN = 60
SECONDS_TO_CONNECT = 3

LISTEN = """\
python3 - <<'END'
import json, selectors, socket, time
ports, token, seconds = json.loads('''SETTINGS''')
waiting, deadline = selectors.DefaultSelector(), time.monotonic() + seconds
# The way to end it lies past every firewall, and leaves no file.
end = socket.socket(socket.AF_UNIX)
end.bind("\\0tfdeploy-" + token)
end.listen()
waiting.register(end, selectors.EVENT_READ)
for port in ports:
    try:
        server = socket.create_server(("", port))
    except OSError as error:
        print(port, error.strerror, flush=True)
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

STOP = """\
python3 - <<'END'
import json, socket
socket.socket(socket.AF_UNIX).connect("\\0tfdeploy-" + json.loads('''SETTINGS''')[1])
END
"""

CONNECT = """\
python3 - <<'END'
import json, socket, time
targets, token, seconds = json.loads('''SETTINGS''')
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


def attempt(wanted: Sequence[Edge], remotes: Mapping[str, Remote]) -> dict[Edge, str]:
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
        stop = script(STOP, None, token, 0)
        remote.on_each({host: remotes[host] for host in ports}, lambda host: host.run(stop, root=False))
        for future in listening:
            future.exception()
    found: dict[Edge, str] = {}
    for name, answer in answers.items():
        for edge in by_source[name]:
            found[edge] = str(answer) if isinstance(answer, TfdeployError) else answer.get(edge, "no answer")
    return found


def script(template: str, what: object, token: str, seconds: float) -> str:
    return template.replace("SETTINGS", json.dumps([what, token, seconds]))


def _connect(source: Remote, wanted: Sequence[Edge], token: str) -> dict[Edge, str]:
    targets = [(edge.target.address, edge.target.port, token[::-1]) for edge in wanted]
    output = source.run(script(CONNECT, targets, token, SECONDS_TO_CONNECT), root=False)
    found = dict(_answers(output.stdout))
    why = remote.last_line(output.stderr) or "it could not be tried"
    results = {edge: found.get((edge.target.address, edge.target.port), why) for edge in wanted}
    return {edge: "" if result == "ok" else result for edge, result in results.items()}


def _answers(printed: str) -> Iterator[tuple[tuple[str, int], str]]:
    for line in printed.splitlines():
        address, port, found = json.loads(line)
        yield (address, port), found
