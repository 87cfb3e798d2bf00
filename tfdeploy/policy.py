"""What the states of a job's tasks mean for the job. A pure function of plan and states."""

from collections.abc import Sequence

from tfdeploy.outcome import Outcome
from tfdeploy.plan import Plan
from tfdeploy.task import Task
from tfdeploy.truth import State, TaskState


def verdict(plan: Plan, states: Sequence[TaskState], now: float) -> Outcome | None:
    """How the job has ended, or nothing while it goes on.

    Success is looked for first: a worker that fails when the chief is done is noise. The cause of a failure is the task
    that failed first.
    """
    by_id = {each.task.id: each for each in states}
    deciding = [by_id[task.id] for task in decides(plan)]
    if deciding and all(each.state is State.SUCCEEDED for each in deciding):
        who = ", ".join(each.task.id for each in deciding)
        return Outcome("succeeded", f"{who} exited with 0", now)
    # TensorBoard only looks on.
    failed = [each for each in states if each.state is State.FAILED and each.task.role != "tensorboard"]
    if failed:
        first = min(failed, key=lambda each: (each.finished or now, each.task.id))
        return Outcome("failed", f"{first.task.id}: {first.why}", now, first.task.id, first.task.host, first.exit_code)
    stopped = [each for each in deciding if each.state is State.STOPPED]
    if stopped:
        return Outcome("stopped", f"{stopped[0].task.id} was stopped", now)
    return None


def decides(plan: Plan) -> tuple[Task, ...]:
    """Whose exit with 0 is success."""
    chosen = plan.job.policies.success or ("chief" if plan.by_role["chief"] else "worker-0")
    if chosen == "chief":
        return plan.by_role["chief"]
    return plan.by_role["worker"][:1] if chosen == "worker-0" else plan.by_role["worker"]
