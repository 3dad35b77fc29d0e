"""Every key of the configuration: its type, its default and its reason, each once.

`Config` is what the rest of ftsup reads. A field `x_s` is the key `x`, a duration; a field `x_bytes` the key `x`, a size. Knows nothing of
YAML, and nothing of which values can stand beside each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ftsup.policy.rules import Budgets, Duration, Hang, Positive, Rules, Section

_RULES = Rules()
"""The defaults that the policy owns."""

Args = Annotated[tuple[str, ...], Meta(extra={"shell_words": True})]
"""Words of a command: a list, or one text that is split as a shell would."""
Size = Annotated[int, Meta(ge=0, extra={"unit": "size"})]
Count = Annotated[int, Meta(ge=1)]
Nodes = Annotated[int, Meta(ge=1)]
"""A number. The reader picks the member of a union by the YAML node's kind, so `int | NodeRange` ({min, max}) can follow."""
Word = Annotated[str, Meta(pattern=r"^[^\s'\"]*$", extra={"allowed": "one word"})]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$",
        extra={"allowed": "letters, digits, '.', '_', '-'; at most 64, the first a letter or a digit"},
    ),
]
Variable = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", extra={"allowed": "a name of an environment variable"})]
Flag = Annotated[
    str, Meta(pattern=r"^[a-z][a-z0-9-]+$", extra={"allowed": "a long option of sbatch without its dashes, such as mail-type"})
]
Array = Annotated[
    str,
    Meta(
        pattern=r"^(\d{1,7}(-\d{1,7}(:[1-9]\d{0,6})?)?(,\d{1,7}(-\d{1,7}(:[1-9]\d{0,6})?)?)*(%[1-9]\d{0,6})?)?$",
        extra={"allowed": "sbatch's way to write tasks, such as 0-9, 1,3,5 or 1-4%2"},
    ),
]
FlagValue = str | int | bool | None | tuple[str | int, ...]


class Launch(Enum):
    """Who starts the ranks."""

    TORCHRUN = "torchrun"
    COMMAND = "command"


class Requeue(Enum):
    """What follows when an allocation cannot go on."""

    REQUEUE = "requeue"
    CHAIN = "chain"
    OFF = "off"


class Client(Enum):
    """How commands on a login node ask Slurm."""

    AUTO = "auto"
    COMMANDS = "commands"
    PYSLURM = "pyslurm"


class Handlers(Enum):
    """When a script's own handler for the warning is called."""

    AT_BEAT = "at_beat"
    PLAIN = "plain"


class Share(Enum):
    """Who may read the run directory."""

    PRIVATE = "private"
    GROUP = "group"


UNWARNED_ASK_S = 60.0
"""Where no signal would tell that an admin has shortened the time limit."""


class To(Enum):
    """Whom Slurm sends the warning."""

    STEPS = ""
    BATCH = "B:"
    """The batch script alone."""
    NOBODY = "none"


class Warning_(msgspec.Struct, frozen=True):  # noqa: N801 - Warning is Python's
    """The signal before the time limit, how long before, and to whom. A script's handler is for this signal, whoever gets it."""

    signal: str
    lead_s: int
    to: To = To.STEPS


class SlurmOptions(Section, frozen=True, kw_only=True):
    """What is asked of Slurm. An empty value leaves the choice to the cluster."""

    nodes: Annotated[Nodes, Meta(description="nodes of the job")] = 1
    time_s: Annotated[Positive | None, Meta(description="time limit of one grant; null: the partition's")] = None
    partition: Annotated[Word, Meta(description="partition, or several with commas")] = ""
    account: Annotated[Word, Meta(description="account that is charged")] = ""
    qos: Annotated[Word, Meta(description="quality of service")] = ""
    gpus_per_node: Annotated[Count | None, Meta(description="GPUs of each node; typed ones (a100:4): leave null and use extra.gres")] = None
    cpus_per_task: Annotated[
        Count | None, Meta(description="CPUs of each node: ftsup runs one task a node; null: the cluster's default")
    ] = None
    mem_bytes: Annotated[Size | None, Meta(description="memory of each node; 0: all of it; null: the cluster's default")] = None
    signal: Annotated[
        Word,
        Meta(
            description="the warning before the time limit, and its lead: long enough to save once, plus KillWait and end_margin; "
            "Slurm may send it up to a minute early. B:SIGUSR1@120: to the batch script only; none@120: no signal is asked for, and "
            "ftsup watches EndTime itself (a script's handler of SIGUSR1 is called as well)"
        ),
    ] = f"SIGUSR1@{_RULES.warning_s:.0f}"
    handlers: Annotated[
        Handlers,
        Meta(
            description="a script's own handler for that signal. at_beat: ftsup calls it on every rank at the same step, and the signal "
            "itself is ignored; plain: as without ftsup, each rank gets the signal, whenever it arrives"
        ),
    ] = Handlers.AT_BEAT
    requeue: Annotated[
        Requeue,
        Meta(
            description="requeue: the same job goes back to the queue (its id stays); chain: a new job is submitted, for sites "
            "that refuse requeues; off: the run ends with its allocation"
        ),
    ] = Requeue.REQUEUE
    client: Annotated[
        Client,
        Meta(
            description="how commands on a login node look at jobs and nodes. auto: pyslurm where it is installed, fits the site's Slurm "
            "and works, else Slurm's commands; leader and node supervisors always use the commands"
        ),
    ] = Client.AUTO
    exclude: Annotated[Args, Meta(description="nodes never to be used, hostlists allowed: [gpu003, 'gpu[10-12]']")] = ()
    array: Annotated[
        Array,
        Meta(
            description="tasks of a job array, as sbatch takes them (1-4%2: four, two at once). Each is a run of its own; {task} is its "
            "number in command, checkpoint.dir and the values of env"
        ),
    ] = ""
    extra: Annotated[
        dict[Flag, FlagValue],
        Meta(
            description="any other option of sbatch, without its dashes. true or null: without a value; a list: once for each; "
            "false: left out, to undo with --set"
        ),
    ] = msgspec.field(default_factory=dict)

    template: Annotated[
        str,
        Meta(
            description="your own template of the batch script, below workdir if it is relative; empty: ftsup's. It has to run "
            "{{ python }} -m ftsup lead {{ run }}; ftsup puts its own first command before it, so that bash does not die of the warning"
        ),
    ] = ""

    @property
    def warning(self) -> Warning_:
        """`signal` in its parts."""
        name, _, lead = self.signal.partition("@")
        if name == To.NOBODY.value:
            return Warning_("SIGUSR1", int(lead), To.NOBODY)
        to = To.BATCH if name.startswith(To.BATCH.value) else To.STEPS
        return Warning_("SIG" + name.removeprefix(to.value).removeprefix("SIG"), int(lead), to)

    @property
    def flags(self) -> tuple[tuple[str, str | None], ...]:
        """`extra` as it is rendered: an option and its value, None without one; repeated ones follow each other."""
        return tuple((flag, value) for flag, values in self.extra.items() for value in _flag_values(values))


def _flag_values(value: FlagValue) -> tuple[str | None, ...]:
    if isinstance(value, tuple):
        return tuple(str(each) for each in value)
    if isinstance(value, bool) or value is None:
        return () if value is False else (None,)
    return (str(value),)


class Checkpoint(Section, frozen=True, kw_only=True):
    """Where the training's checkpoints are, and how a finished one is known."""

    dir: Annotated[str, Meta(description="directory of the checkpoints, below workdir if it is relative; empty: there are none")] = ""
    pattern: Annotated[str, Meta(description="which entries of dir are checkpoints, a glob", min_length=1)] = "*"
    every_s: Annotated[Positive, Meta(description="a script that asks (ftsup.worker.asked) is told to save this often: 15 to 60 min")] = (
        1800.0
    )
    keep: Annotated[Count, Meta(description="verified checkpoints that are never deleted")] = 3
    seal_rate_bytes: Annotated[
        Size, Meta(description="bytes a second and node that sealing may read, beside training; 0: as fast as it can")
    ] = 200 << 20
    poll_s: Annotated[
        Positive, Meta(description="between two looks for checkpoints to seal; after a save that ftsup sees, it looks at once")
    ] = 30.0
    prune: Annotated[
        bool,
        Meta(
            description="remove older checkpoints once `keep` newer ones are verified: only what this run wrote and ftsup sealed; "
            "false: all are kept"
        ),
    ] = False
    force: Annotated[bool, Meta(description="take dir from another run that is alive, or of which nobody can say whether it is")] = False
    complete: Annotated[
        str,
        Meta(
            description="a glob inside a checkpoint: its presence means that the checkpoint is whole; for kinds that do not tell themselves"
        ),
    ] = ""


class Launcher(Section, frozen=True, kw_only=True):
    """How processes are started on a node."""

    prefix: Annotated[
        Args, Meta(description="words before the launch command, such as a container's: [apptainer, exec, --nv, img.sif]")
    ] = ()


class Notify(Section, frozen=True, kw_only=True):
    """Who is told."""

    command: Annotated[
        Args,
        Meta(
            description="a command that gets the news as JSON on its standard input: an incident, a requeue, no progress, trouble with a "
            "save, the end; it has 30 s, and what it leaves behind is ended"
        ),
    ] = ()
    every_s: Annotated[
        Duration,
        Meta(
            description="at most one call in so long; what comes meanwhile goes with the next. Of the end of an allocation, always at once"
        ),
    ] = 600.0
    no_progress_s: Annotated[
        Duration, Meta(description="told when a run has its nodes and has not got past its best step for so long; 0: never")
    ] = _RULES.no_progress_s


class Waits(Section, frozen=True, kw_only=True):
    """How long the parts of ftsup wait for each other. Nothing here is worth changing on a healthy cluster."""

    tick_s: Annotated[Positive, Meta(description="between two looks at the beats: a hang is found one tick after its limit")] = 1.0
    late_s: Annotated[
        Positive, Meta(description="a tick so late means that the watcher itself was away (stopped, suspended): all marks start again")
    ] = _RULES.late_s
    hello_s: Annotated[
        Positive, Meta(description="for a node's supervisor to start and to answer: Python on a cold file system, a slow prolog")
    ] = _RULES.hello_s
    setup_s: Annotated[Positive, Meta(description="for node_setup: unpacking an environment can take long")] = _RULES.setup_s
    pick_s: Annotated[
        Positive, Meta(description="for choosing and verifying a checkpoint; as long as bytes are read, it begins anew: some are big")
    ] = _RULES.pick_s
    files_s: Annotated[
        Positive, Meta(description="for a slow NFS to show the chosen checkpoint's files, on every node, before the launch")
    ] = 60.0
    beats_s: Annotated[Positive, Meta(description="between two notes of the ranks' steps in the event log")] = _RULES.beats_s
    ask_s: Annotated[
        Positive, Meta(description="between two questions to Slurm about the job: hundreds of leaders must not load a controller")
    ] = _RULES.ask_s
    kill_margin_s: Annotated[
        Duration, Meta(description="told to end, ftsup is done so long before Slurm's KillWait runs out: SIGKILL leaves no record")
    ] = _RULES.kill_margin_s
    end_margin_s: Annotated[
        Duration, Meta(description="a requeue is asked so long before EndTime less KillWait: after that Slurm calls the job TIMEOUT")
    ] = _RULES.end_margin_s
    stagger_s: Annotated[
        Duration, Meta(description="nodes whose batch host is gone requeue the job one after another, so far apart, so that one does it")
    ] = _RULES.stagger_s
    staggers: Annotated[Count, Meta(description="how many nodes stand in that line; all others wait as long as the last")] = _RULES.staggers


class Config(Section, frozen=True, kw_only=True):
    """One training run."""

    name: Annotated[Name, Meta(description="names the job and the folder of its runs", examples=["train"])]
    launch: Annotated[
        Launch, Meta(description="torchrun: ftsup starts torchrun with command's script; command: it starts command itself, once a node")
    ] = Launch.TORCHRUN
    command: Annotated[
        Args,
        Meta(description="the script and its arguments, or -m and a module; a list, or one text", min_length=1, examples=[["train.py"]]),
    ]
    resume_args: Annotated[
        Args,
        Meta(
            description="added to command when there is a checkpoint, with {path} replaced by it: [--resume, '{path}']; "
            "FTSUP_RESUME_FROM holds it as well"
        ),
    ] = ()
    python: Annotated[str, Meta(description="the training environment's interpreter; empty: the one that runs ftsup")] = ""
    setup: Annotated[str, Meta(description="shell lines in the batch script, before anything else (module load ...)")] = ""
    node_setup: Annotated[
        str, Meta(description="shell lines run once a node and grant, before the first attempt; ranks get the environment that they leave")
    ] = ""
    env: Annotated[
        dict[Variable, str], Meta(description="environment of the ranks; never written to the script, a command line or Slurm's records")
    ] = msgspec.field(default_factory=dict)
    workdir: Annotated[str, Meta(description="directory of the ranks; empty: the one in which ftsup submit ran")] = ""
    workers_per_node: Annotated[Count | None, Meta(description="ranks of each node; null: slurm.gpus_per_node, else 1")] = None
    slurm: SlurmOptions = SlurmOptions()
    checkpoint: Checkpoint = Checkpoint()
    hang: Hang = Hang()
    policy: Budgets = Budgets()
    grace_s: Annotated[
        Positive, Meta(description="from SIGTERM to SIGKILL when an attempt is stopped; shrinks to fit Slurm's KillWait")
    ] = _RULES.grace_s
    lead_grace_s: Annotated[
        Positive, Meta(description="without a leader for so long, a node asks Slurm itself: bash starts a dead leader again within seconds")
    ] = _RULES.lead_grace_s
    node_grace_s: Annotated[
        Positive, Meta(description="a node silent for so long while Slurm calls it healthy gets a new supervisor: more than a slow poll")
    ] = _RULES.node_grace_s
    evidence_s: Annotated[
        Duration, Meta(description="the most that collecting evidence may delay a restart; what is not there by then is left out")
    ] = _RULES.evidence_s
    waits: Waits = Waits()
    runs_dir: Annotated[str, Meta(description="where run directories are made; on a disk that the nodes see", min_length=1)] = (
        "./ftsup-runs"
    )
    local_dir: Annotated[
        str, Meta(description="local disk of a node, for the event log and output; empty: the node's TMPDIR, else /tmp")
    ] = ""
    launcher: Launcher = Launcher()
    share: Annotated[Share, Meta(description="private: the run directory is 0700; group: the group may read it, keys and env never")] = (
        Share.PRIVATE
    )
    notify: Notify = Notify()

    @property
    def workers(self) -> int:
        """Ranks of each node."""
        return self.workers_per_node or self.slurm.gpus_per_node or 1

    def local_base(self, environ: Mapping[str, str]) -> Path:
        """`local_dir` as it is on the node with this environment."""
        return Path(self.local_dir or environ.get("TMPDIR") or "/tmp")  # noqa: S108 - the fallback; what is made below it is 0700

    def rules(self) -> Rules:
        """The numbers of the two machines."""
        return Rules(
            hang=self.hang,
            policy=self.policy,
            grace_s=self.grace_s,
            lead_grace_s=self.lead_grace_s,
            node_grace_s=self.node_grace_s,
            evidence_s=self.evidence_s,
            late_s=self.waits.late_s,
            hello_s=self.waits.hello_s,
            setup_s=self.waits.setup_s,
            pick_s=self.waits.pick_s,
            beats_s=self.waits.beats_s,
            ask_s=self.waits.ask_s if self.slurm.warning.to is not To.NOBODY else min(self.waits.ask_s, UNWARNED_ASK_S),
            kill_margin_s=self.waits.kill_margin_s,
            end_margin_s=self.waits.end_margin_s,
            stagger_s=self.waits.stagger_s,
            staggers=self.waits.staggers,
            no_progress_s=self.notify.no_progress_s,
            every_s=self.checkpoint.every_s,
            plain=self.slurm.handlers is Handlers.PLAIN,
            warning_s=float(self.slurm.warning.lead_s),
            can_requeue=self.slurm.requeue is not Requeue.OFF,
            chain=self.slurm.requeue is Requeue.CHAIN,
            workers_per_node=self.workers,
            watched=self.launch is Launch.TORCHRUN,
        )
