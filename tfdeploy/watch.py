"""Watching a job until it is over: hosts tell when a task starts or ends, the policy says what that means.

One watches; whoever comes second only looks on. What is decided stands on the hosts.
"""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from tfdeploy import host_scripts, lock, policy, remote, truth
from tfdeploy.errors import TfdeployError, UnreachableError
from tfdeploy.host_scripts import records
from tfdeploy.inventory import Host
from tfdeploy.launch import Launch
from tfdeploy.lock import Holder
from tfdeploy.outcome import Outcome
from tfdeploy.remote import Credentials, Remote
from tfdeploy.truth import HostView, JobView, State

SECONDS_BETWEEN_LOOKS = 15.0
SECONDS_BEFORE_ENTERING_AGAIN = 5.0
MOST_SECONDS_BEFORE_ENTERING_AGAIN = 60.0
HOURS_WITHOUT_ANY_HOST = 6
SECONDS_FOR_A_SCRIPT = 60


@dataclass
class Watch:
    """One controller's eyes on one job."""

    launch: Launch
    hosts: Mapping[str, Host]
    remotes: dict[str, Remote | TfdeployError]
    credentials: Credentials
    on_change: Callable[[JobView], None] = lambda view: None
    holder: Holder = field(init=False)
    in_charge: bool = field(init=False, default=True)
    views: dict[str, HostView | TfdeployError] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.holder = lock.me(self.launch.job, self.launch.generation)

    def until_over(self) -> Outcome:
        """Ctrl-C may end it at any moment: the job goes on, and its hosts know all that we knew."""
        nudges: queue.Queue[str] = queue.Queue()
        with self._listening(nudges):
            self._beat()
            self._look(tuple(self.hosts))
            next_beat = next_look = answered = time.monotonic()
            while True:
                if outcome := self._over():
                    return self._finished(outcome)
                now = time.monotonic()
                if any(isinstance(view, HostView) for view in self.views.values()):
                    answered = now
                elif now - answered > HOURS_WITHOUT_ANY_HOST * 3600:
                    raise UnreachableError(
                        f"no host has answered for {HOURS_WITHOUT_ANY_HOST} hours: nobody watches now"
                    )
                if now >= next_beat:
                    next_beat = now + lock.SECONDS_BETWEEN_BEATS
                    self._beat()
                if now >= next_look:
                    next_look = now + SECONDS_BETWEEN_LOOKS
                    self._look(tuple(self.hosts))
                with contextlib.suppress(queue.Empty):
                    self._look(_all_of(nudges, nudges.get(timeout=max(0.1, min(next_beat, next_look) - now))))

    def hand_over(self) -> None:
        """So that another may take the watch at once."""
        if self.in_charge:
            self._on_hosts(lambda host: host_scripts.release_watch(self.launch.job, host.home, self.holder))

    @property
    def view(self) -> JobView:
        return truth.job_view(self.launch, self.views)

    def _over(self) -> Outcome | None:
        view = self.view
        if self._gone():
            return Outcome("stopped", "the job was taken down", time.time())
        return view.outcome or policy.verdict(self.launch.plan, view.tasks, view.now)

    def _gone(self) -> bool:
        """No host that answers knows the job any more."""
        seen = [view for view in self.views.values() if isinstance(view, HostView)]
        return bool(seen) and all(view.launch is None for view in seen)

    def _finished(self, outcome: Outcome) -> Outcome:
        """Stops the rest and keeps the outcome on the hosts; whoever only looks on leaves that to the other."""
        if not self.in_charge or self.view.outcome or self._gone():
            return outcome
        job, grace = self.launch.job, self.launch.plan.job.policies.grace
        alive = [each.task for each in self.view.tasks if not each.state.over]
        self._on_hosts(
            lambda host: host_scripts.stop(job, host.home, [task.id for task in alive if task.host == host.name], grace)
        )
        self._on_hosts(lambda host: host_scripts.finish(job, host.home, outcome.to_json()))
        self._look(tuple(self.hosts))
        return outcome

    def _look(self, names: tuple[str, ...]) -> None:
        def one(name: str) -> HostView:
            host = self.remotes[name]
            if isinstance(host, TfdeployError):
                raise host
            output = host.run(host_scripts.look(self.launch.job, host.home), seconds=SECONDS_FOR_A_SCRIPT)
            return truth.host_view(output.stdout, self.launch.generation)

        before = self.view if self.views else None
        self.views |= remote.on_each({name: name for name in names}, one)
        if not self._gone() and (before is None or before.tasks != self.view.tasks):
            self.on_change(self.view)

    def _beat(self) -> None:
        answers = self._on_hosts(lambda host: host_scripts.beat(self.launch.job, host.home, self.holder))
        self.in_charge = not any("held" in dict(records(answer)) for answer in answers.values())

    def _on_hosts(self, script: Callable[[Remote], str]) -> dict[str, str]:
        grace = self.launch.plan.job.policies.grace
        entered = {name: host for name, host in self.remotes.items() if not isinstance(host, TfdeployError)}
        answers = remote.on_each(entered, lambda host: host.run(script(host), seconds=SECONDS_FOR_A_SCRIPT + grace))
        return {name: answer.stdout for name, answer in remote.answered(answers).items()}

    @contextlib.contextmanager
    def _listening(self, nudges: "queue.Queue[str]") -> Iterator[None]:
        over = threading.Event()
        ears = [threading.Thread(target=self._listen, args=(name, nudges, over), daemon=True) for name in self.hosts]
        for ear in ears:
            ear.start()
        try:
            yield
        finally:
            over.set()
            for ear in ears:
                ear.join(timeout=2)

    def _listen(self, name: str, nudges: "queue.Queue[str]", over: threading.Event) -> None:
        """To one host while the job is watched; a connection that was lost is made again, less and less often."""
        pause = SECONDS_BEFORE_ENTERING_AGAIN
        while not over.wait(0):
            try:
                host = self.remotes[name]
                if isinstance(host, TfdeployError):
                    host = self.remotes[name] = remote.enter(self.hosts[name], self.credentials)
                    pause = SECONDS_BEFORE_ENTERING_AGAIN
                    nudges.put(name)
                host.stream(host_scripts.changes(self.launch, host.home), lambda line: nudges.put(name), over)
            except TfdeployError as error:
                if over.is_set():
                    return
                self.remotes[name] = error
                nudges.put(name)
            over.wait(pause)
            pause = min(2 * pause, MOST_SECONDS_BEFORE_ENTERING_AGAIN)


def _all_of(nudges: "queue.Queue[str]", first: str) -> tuple[str, ...]:
    names = {first: None}
    with contextlib.suppress(queue.Empty):
        while True:
            names[nudges.get_nowait()] = None
    return tuple(names)


def running(view: JobView) -> bool:
    return all(each.state is State.RUNNING for each in view.tasks)
