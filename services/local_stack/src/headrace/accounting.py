"""The accounts of a run: every identity between two independent counts, and the one sum over the whole chain. Pure.

The unit of the sum is the message:

    in (records of raw, and what the bridge refused) + pending before
        = out (members written + data passed on that is not a measurement + registrations that took effect)
        + dead letters + discarded (counted, without effect) + pending

`in`, what is passed on, and the dead letters are counted by reading the topics; members written by the writer's totals
in SQLite; discarded and pending by the stages' gauges. So a message that one stage loses or makes up breaks the sum.
A second job writes the same batches once more; it has identities of its own, and no part in the sum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.endpoints import ARCHIVE, WRITER, Job
from headrace.evidence import Found, Mark, Written

OUTCOMES = ("passed", "replayed", "applied", "no_effect", "replaced")
RESULTS = ("not_measurement", "repeat", "accepted", "invalid", "duplicate", "future", "late")


@dataclass(frozen=True)
class Line:
    """An identity: `left` and `right` are counted in different places and must be equal."""

    name: str
    left: int
    right: int

    @property
    def holds(self) -> bool:
        """Whether it does."""
        return self.left == self.right


@dataclass(frozen=True)
class Account:
    """All numbers of a run. `echoes`: the stack's own retained registrations, which the broker sends back; `again`:
    messages that MQTT delivered more than once; `foreign`: messages of somebody else; `archived`: rows that the second
    job stored, None where there is none."""

    published: int
    unacknowledged: int
    raw: int
    echoes: int
    again: int
    foreign: int
    routed: int
    batches: int
    members: int
    rows: int
    stored: int
    dead_letters: Mapping[str, int]
    discarded: Mapping[str, int]
    pending_before: int
    pending: int
    replayed: int
    repeats: Mapping[str, int]
    into: int
    out: int
    lines: tuple[Line, ...]
    archived: int | None = None

    @property
    def dead(self) -> int:
        """All dead letters."""
        return sum(self.dead_letters.values())

    @property
    def sum(self) -> Line:
        """The one sum over the chain."""
        right = self.out + self.dead + sum(self.discarded.values()) + self.pending
        return Line("in + pending before = out + dead letters + discarded + pending", self.into, right)

    @property
    def holds(self) -> bool:
        """Whether the sum and every identity hold."""
        return self.sum.holds and all(line.holds for line in self.lines)


class Difference:
    """What the counters rose by between two marks."""

    def __init__(self, before: Mark, after: Mark) -> None:
        self._before = before
        self._after = after

    def gauge(self, stage: str, name: str) -> int:
        """Of a stage's counter."""
        return self.level(stage, name) - self._before.gauges.get(stage, {}).get(name, 0)

    def level(self, stage: str, name: str) -> int:
        """A stage's gauge as it stands after the run."""
        return self._after.gauges.get(stage, {}).get(name, 0)

    def under(self, stage: str, prefix: str) -> dict[str, int]:
        """Of a stage's counters with a prefix, by the rest of the name; without zeros."""
        names = [name for name in self._after.gauges.get(stage, {}) if name.startswith(prefix)]
        return {name.removeprefix(prefix): rise for name in names if (rise := self.gauge(stage, name))}

    def job(self, job: Job) -> Work:
        """Of a Spark job."""
        before, after = _written(self._before, job), _written(self._after, job)
        rise = {name: value - before.totals.get(name, 0) for name, value in after.totals.items()}
        batches = self._after.records("batches") - self._before.records("batches")
        return Work(job, rise, after.rows - before.rows, batches - rise.get("records", 0))


@dataclass(frozen=True)
class Work:
    """What a Spark job did between two marks: the rise of its totals, rows new in its table, and records of `batches`
    that it has not committed."""

    job: Job
    rise: Mapping[str, int]
    stored: int
    unread: int

    def total(self, name: str) -> int:
        """The rise of one of its totals."""
        return self.rise.get(name, 0)

    @property
    def letters(self) -> int:
        """Dead letters that it has sent."""
        return sum(number for name, number in self.rise.items() if name.startswith("dead_letters."))

    @property
    def members_refused_by_the_store(self) -> int:
        """Members that were taken and of which the store then refused a row: one letter each."""
        return self.letters - self.total("rejected") - self.total("members_rejected")


def account(
    before: Mark, after: Mark, found: Found, published: Counter[bytes] | None, unacknowledged: int = 0
) -> Account:
    """The account of what lies between two marks. `published` holds the digests of what was handed to the broker; None
    if that is not known: then everything in raw is taken as it is."""
    rise = Difference(before, after)
    known = Counter[bytes]() if published is None else published
    matched = known & found.messages
    surplus = found.messages - matched
    echoes = surplus & found.outbound
    foreign = Counter({d: n for d, n in (surplus - echoes).items() if d not in known})
    refused_by_bridge = sum(n for (stage, _), n in found.letters.items() if stage == "bridge")
    open_before = before.gauges.get("batching", {}).get("open_members", 0)
    pending_before = before.gauges.get("registration", {}).get("pending", 0) + open_before
    writer = rise.job(WRITER)
    unwritten = found.members - writer.total("members") if writer.unread else 0
    lines = [*_registration(rise, found, before), *_batching(rise, found, open_before), *_job(writer, found)]
    if after.archived is not None:
        lines += _job(rise.job(ARCHIVE), found)
    if published is not None:
        seen = matched.total() + min(refused_by_bridge, known.total() - matched.total())
        lines.insert(0, Line("published = acknowledged", known.total(), known.total() - unacknowledged))
        lines.insert(1, Line("published = found in raw", known.total(), seen))
    return Account(
        published=known.total(),
        unacknowledged=unacknowledged,
        raw=found.raw,
        echoes=echoes.total(),
        again=(surplus - echoes - foreign).total(),
        foreign=foreign.total(),
        routed=found.routed,
        batches=found.batches,
        members=found.members,
        rows=writer.total("rows"),
        stored=writer.stored,
        dead_letters=_dead_letters(found),
        discarded=_discarded(rise),
        pending_before=pending_before,
        pending=rise.level("registration", "pending") + rise.level("batching", "open_members") + unwritten,
        replayed=rise.gauge("registration", "replayed"),
        repeats=_repeats(rise, writer, found),
        into=found.raw + refused_by_bridge + pending_before,
        out=writer.total("members_taken")
        - writer.members_refused_by_the_store
        + found.data
        - found.measurements
        + rise.gauge("registration", "applied"),
        lines=tuple(lines),
        archived=None if after.archived is None else rise.job(ARCHIVE).stored,
    )


def _dead_letters(found: Found) -> dict[str, int]:
    """By reason; those of the archive are the writer's again."""
    reasons: Counter[str] = Counter()
    for (stage, reason), number in found.letters.items():
        reasons[reason] += number if stage != _stage(ARCHIVE) else 0
    return {reason: number for reason, number in sorted(reasons.items()) if number}


def latencies(found: Found, published_ms: Mapping[tuple[str, int], int], timeout_ms: int) -> list[int]:
    """For each batch that closed by its timeout: the broker's append time of the batch, minus the moment when its
    opening message was handed to the MQTT client, minus batching's timeout, in ms.

    It is what the pipeline adds to the wait that batching prescribes; a tick interval is part of it. Batches whose
    opening message is not in `published_ms` are left out: they waited for a registration, or somebody else sent them.
    """
    return [
        appended_ms - published_ms[topic, event_ms] - timeout_ms
        for topic, event_ms, appended_ms in found.opened
        if (topic, event_ms) in published_ms
    ]


def _registration(rise: Difference, found: Found, before: Mark) -> list[Line]:
    def of(name: str) -> int:
        return rise.gauge("registration", name)

    dead = sum(rise.under("registration", "refused.").values()) + sum(rise.under("registration", "lost.").values())
    settled = sum(map(of, OUTCOMES)) + dead + sum(rise.under("registration", "discarded.").values())
    pending = before.gauges.get("registration", {}).get("pending", 0)
    letters = sum(n for (stage, _), n in found.letters.items() if stage == "registration")
    return [
        Line("messages in raw = in of registration", found.raw, of("in")),
        Line(
            "registration: in + pending before = outcomes + pending",
            of("in") + pending,
            settled + of("pending") + pending,
        ),
        Line("data in routed = passed + replayed", found.data, of("passed") + of("replayed")),
        Line("dead letters of registration = refused + lost", letters, dead + of("unreadable")),
    ]


def _batching(rise: Difference, found: Found, open_before: int) -> list[Line]:
    def of(name: str) -> int:
        return rise.gauge("batching", name)

    rejected = of("invalid") + of("future") + of("late")
    letters = sum(n for (stage, _), n in found.letters.items() if stage == "batching")
    return [
        Line("routed = in of batching - repeats", found.routed, of("in") - of("repeat")),
        Line("batching: in = results", of("in"), sum(map(of, RESULTS))),
        Line("measurements in routed = accepted + duplicate + rejected", found.measurements,
             of("accepted") + of("duplicate") + rejected),
        Line("accepted + open before = members of batches + open", of("accepted") + open_before,
             found.members + rise.level("batching", "open_members")),
        Line("dead letters of batching = invalid + future + late", letters, rejected),
    ]  # fmt: skip


def _job(work: Work, found: Found) -> list[Line]:
    of, name = work.total, work.job.name
    written = of("inserted") + of("replaced") + of("repeats") + of("rows_refused") + of("rows_postponed")
    lines = [
        Line(f"{name}: members = taken + refused", of("members"), of("members_taken") + of("members_rejected")),
        Line(f"{name}: rows = inserted + replaced + repeated + refused + postponed", of("rows"), written),
        Line(f"{name}: rows in the table = inserted", work.stored, of("inserted")),
    ]
    if not work.unread:
        letters = sum(n for (stage, _), n in found.letters.items() if stage == _stage(work.job))
        lines += [
            Line(f"batches = documents of the {name}", found.batches, of("documents")),
            Line(f"members of batches = members of the {name}", found.members, of("members")),
            Line(f"dead letters of the {name} = those it counted", letters, work.letters),
        ]
        if not of("members_rejected"):
            lines.append(Line(f"numbers in batches = rows of the {name}", found.leaves, of("rows")))
    return lines


def _stage(job: Job) -> str:
    """The `stage` header of a job's dead letters."""
    return f"spark.{job.name}"


def _written(mark: Mark, job: Job) -> Written:
    return (mark.archived or Written()) if job == ARCHIVE else Written(mark.totals, mark.rows)


def _discarded(rise: Difference) -> dict[str, int]:
    """Counted, without effect and without a dead letter, by reason."""
    found = rise.under("registration", "discarded.")
    for stage, name in (("registration", "no_effect"), ("registration", "replaced"), ("batching", "duplicate")):
        if number := rise.gauge(stage, name):
            found[name] = number
    return dict(sorted(found.items()))


def _repeats(rise: Difference, writer: Work, found: Found) -> dict[str, int]:
    """What came again and was recognised: measurements, registrations, and records written again after a crash."""
    counts = {
        "measurements": rise.gauge("batching", "duplicate"),
        "registrations": rise.gauge("registration", "no_effect"),
        "routed records": rise.gauge("batching", "repeat"),
        "batches": writer.total("documents_repeated"),
        "rows": writer.total("repeats"),
        "dead letters": found.repeats["dead-letter"],
    }
    return {name: number for name, number in counts.items() if number}
