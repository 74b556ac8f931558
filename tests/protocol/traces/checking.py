"""Checks whole traces: every request of every mesh below a folder, the pages across requests, and what the run reached.

A trace that proves nothing is an error: one without requests, one from which lines are missing, and, where faults are
wanted, one in which no process was killed or stood still, or no request went on after it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.protocol.traces.ledger import page_faults
from tests.protocol.traces.mesh_trace import MeshTrace
from tests.protocol.traces.projecting import ObservedStep, project
from tests.protocol.traces.reading import BadTrace, ProcessTrace, killed, meshes_below, read_mesh
from tests.protocol.traces.walking import ARRIVES_SECONDS, RequestWalk, WalkOutcome

LAST_EVENTS = 25  # before the violation that are shown


@dataclass(slots=True)
class TraceReport:
    meshes: int = 0
    processes: int = 0
    killed: int = 0
    stood_still: int = 0
    requests: int = 0
    examinations: int = 0  # requests without a hand-off, which the model does not have
    resumed: int = 0  # requests with more than one attempt
    events: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    most_states: int = 0  # in which a request's world may have been at one moment
    problems: list[str] = field(default_factory=list)

    @property
    def faults(self) -> int:
        return self.killed + self.stood_still

    def missing(self) -> str:
        """Why the trace proves nothing; empty: it does."""
        if not self.requests or not self.events:
            return "the trace has no events of a request"
        if not self.killed and not self.stood_still:
            return "no process of the trace was killed or stood still"
        return "" if self.resumed else "no request of the trace went on in a second attempt"

    def text(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        faults = f"{self.killed} killed, {self.stood_still} times one stood still"
        requests = f"{self.requests} requests ({self.resumed} resumed, {self.examinations} examinations not checked)"
        return (
            f"{self.meshes} meshes, {self.processes} processes ({faults}), {requests}, "
            f"{self.events} events, at most {self.most_states} states; {len(self.problems)} violations\n{kinds}"
        )


def check_folder(folder: Path, report: TraceReport | None = None) -> TraceReport:
    """Every mesh that has logged below this folder. A damaged log is a problem of its mesh."""
    report = report or TraceReport()
    for mesh in meshes_below(folder):
        try:
            check_processes(read_mesh(mesh), report)
        except BadTrace as problem:
            report.problems.append(f"{mesh.name}: {problem}")
    return report


def check_processes(
    processes: list[ProcessTrace], report: TraceReport, *, arrives_seconds: float | None = ARRIVES_SECONDS
) -> None:
    """The trace of one mesh; BadTrace if it is not complete."""
    report.meshes += 1
    report.processes += len(processes)
    report.killed += len(killed(processes))
    report.stood_still += sum(each.stood_still for each in processes)
    mesh = MeshTrace(processes)
    report.problems += page_faults(mesh)
    report.examinations += len(mesh.examined)
    for request in mesh.of_request:
        if request in mesh.examined:
            continue
        projection = project(mesh, request)
        outcome = RequestWalk(projection, arrives_seconds=arrives_seconds).run()
        report.requests += 1
        report.resumed += len(projection.routes) > 1
        report.events += outcome.events
        report.kinds.update(f"{step.what} {step.form[0]}" if step.form else step.what for step in projection.steps)
        report.most_states = max(report.most_states, outcome.most_states)
        if outcome.problem:
            report.problems.append("\n".join(told(mesh, projection.steps, request, outcome)))


def told(mesh: MeshTrace, steps: list[ObservedStep], request: int, outcome: WalkOutcome) -> Iterable[str]:
    """The story of a violation: the last events, the one that is not allowed, and where the model stands."""
    yield f"request {request}: {outcome.problem}"
    end = len(steps) if outcome.step is None else steps.index(outcome.step)
    for place, step in enumerate(steps[max(0, end - LAST_EVENTS) : end + 1], max(0, end - LAST_EVENTS)):
        name, other = mesh.processes[step.event.process].name, mesh.processes[step.event.peer].name
        mark = ">>" if place == end else "  "
        message = " ".join(map(str, step.form)) or "session"
        yield f" {mark} {step.event.seconds:.6f} {name} {step.what} {message} {step.reason} ({other})"
    yield from (f"    the model: {each}" for each in outcome.allowed)
